"""The full audit in slices: what is old is judged again too, a bounded part at a time."""

import asyncio
from uuid import UUID

import pytest

from tests.engine.audited import BASE, Play, World
from tidegate.core.kind import Party
from tidegate.core.request import Request
from tidegate.engine import audit_slices
from tidegate.engine.audit import Audit, AuditScope
from tidegate.engine.audit_slices import MAX_OWNERS, MAX_PAGES, PAGE, AuditSlice, slice_of
from tidegate.engine.pending_request import Receipt
from tidegate.engine.request_forms import LEDGER, ExternalTransfer
from tidegate.flows import FLOWS
from tidegate.store import audit_progress
from tidegate.store.audit_progress import LAST_ID, LAST_OWNER, AuditProgress
from tidegate.systems.ledger import FUNDING

DAY_S = 86_400.0
CHANGE = (
    "UPDATE ledger_accounts SET available = available + %s"
    " WHERE owner = %s AND book = %s AND asset_id = 3"
)
BEGUN = AuditProgress(UUID(int=0), 0, 0, 0, 0.0, 10_000_000, 500_000)


async def idle(world: World) -> None:
    """All has ended, and nothing is new since the last audit."""
    await world.traffic()
    assert (await world.audit.run(full=False)).ok
    await world.corrupt("UPDATE transfers SET created_at = created_at - interval '1 hour'")
    assert (await world.audit.run(full=False)).ok


async def swept(world: World, audit: Audit | None = None) -> list[str]:
    """What a whole sweep finds."""
    for _ in range(100):
        report = await (audit or world.audit).run(full=False, sweep_s=DAY_S)
        if report.violations or (await audit_progress.current(world.gate.store, DAY_S)).over:
            return report.violations
    raise AssertionError("the sweep does not end")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "violation"),
    [
        (
            ((1, BASE, "FUNDING"), (-1, BASE + 1, "FUNDING")),
            f"owner {BASE}, asset 3: the books are off by 1",
        ),
        (
            ((1, BASE, "FUNDING"), (-1, BASE, "OUTSIDE")),
            f"account FUNDING of {BASE}, asset 3: it does not follow from its operations",
        ),
    ],
)
def test_errors_that_cancel_in_idle_accounts_are_found(
    play_audited: Play, changes: tuple[tuple[int, int, str], ...], violation: str
) -> None:
    async def scene(world: World) -> None:
        await idle(world)
        for change in changes:
            await world.corrupt(CHANGE, *change)
        assert (await world.audit.run(full=False)).ok, "what is new has nothing to do with it"
        found = await swept(world)
        assert any(violation in each for each in found), found
        assert await world.gate.store.halted()

    play_audited(scene)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statement", "violation"),
    [
        ("UPDATE history SET reason = 'x' WHERE transfer_id = %s", "is not what was hashed"),
        ("DELETE FROM ledger_operations WHERE transfer_id = %s", "ledger holds nothing under"),
        ("DELETE FROM transfers WHERE id = %s", "does not exist"),
    ],
)
def test_an_old_transfer_that_was_spoilt_is_found(
    play_audited: Play, statement: str, violation: str
) -> None:
    async def scene(world: World) -> None:
        await idle(world)
        await world.corrupt(statement, await world.some_transfer("COMMITTED"))
        found = await swept(world)
        assert any(violation in each for each in found), found

    play_audited(scene)


@pytest.mark.slow
def test_an_owner_whose_accounts_are_all_gone_is_found(play_audited: Play) -> None:
    """Together they held nothing, so that every sum agrees without them."""

    async def scene(world: World) -> None:
        await idle(world)
        for owner in (BASE - 1, BASE + 9):
            await world.gate.deposit(ExternalTransfer("FUNDING", "USDT", "7", "d"), owner)
        assert (await world.audit.run(full=False)).ok, "from now on their deposits are old"
        for owner in (BASE - 1, BASE + 9):
            await world.corrupt("DELETE FROM ledger_accounts WHERE owner = %s", owner)
        found = await swept(world)
        assert sorted(found) == [
            f"account {book} of {owner}, asset 3: it does not follow from its operations"
            for book in ("FUNDING", "OUTSIDE")
            for owner in (BASE - 1, BASE + 9)
        ]

    play_audited(scene)


PAYER, MEMBERS = 9_000, range(1_001, 1_061)


async def shared_out(world: World) -> Audit:
    """One pays many, so that the accounts of these do not follow from their own transfers."""
    whom = (PAYER, *MEMBERS)
    deposits = (
        world.gate.deposit(ExternalTransfer("FUNDING", "USDT", "1", "d"), owner) for owner in whom
    )
    await asyncio.gather(*deposits)
    source = Party(LEDGER, FUNDING, PAYER)
    for member in MEMBERS:
        parties = {"source": source, "target": Party(LEDGER, FUNDING, member)}
        request = Request(PAYER, "internal_transfer", parties, 3, 5)
        said = await world.gate.engine.transfer(request, 20)
        assert isinstance(said, Receipt)
        assert said.transfer.state == "COMMITTED"
    audit = Audit(
        world.gate.store, world.core, FLOWS, world.alerts.append, AuditScope(owners_alone=False)
    )
    assert (await audit.run(full=False)).ok
    await world.corrupt("UPDATE transfers SET created_at = created_at - interval '1 hour'")
    assert (await audit.run(full=False)).ok
    return audit


@pytest.mark.slow
@pytest.mark.parametrize("spoilt", [MEMBERS[0], MEMBERS[30], MEMBERS[-1]])
def test_an_error_behind_many_false_suspects_is_found(
    play_audited: Play, monkeypatch: pytest.MonkeyPatch, spoilt: int
) -> None:
    async def scene(world: World) -> None:
        audit = await shared_out(world)
        await world.corrupt(CHANGE, 1, spoilt, "FUNDING")
        await world.corrupt(CHANGE, -1, spoilt, "OUTSIDE")
        found = await swept(world, audit)
        assert sorted(found) == [
            f"account {book} of {spoilt}, asset 3: it does not follow from its operations"
            for book in ("FUNDING", "OUTSIDE")
        ]
        await audit.close()

    monkeypatch.setattr("tidegate.engine.audit.slice_of", all_members)
    play_audited(scene)


def all_members(sweep: AuditProgress, _: float) -> AuditSlice | None:
    """Every member at once, without the payer."""
    return None if sweep.over else AuditSlice(sweep, 1, len(MEMBERS))


@pytest.mark.slow
def test_many_false_suspects_are_no_violation_and_the_sweep_ends(
    play_audited: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(world: World) -> None:
        audit = await shared_out(world)
        assert await swept(world, audit) == []
        over = await audit_progress.current(world.gate.store, DAY_S)
        assert over.owners == len(MEMBERS) + 1, "each of them once"
        await audit.close()

    monkeypatch.setattr("tidegate.engine.audit.slice_of", all_members)
    play_audited(scene)


@pytest.mark.slow
def test_a_sweep_goes_on_in_another_process_and_verifies_everything(
    play_audited: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(world: World) -> None:
        store = world.gate.store
        await idle(world)
        await world.corrupt("UPDATE audit_sweep SET begun_at = now() - interval '5 hours'")
        assert await audit_progress.age_s(store) > 4 * 3600
        monkeypatch.setattr(audit_slices, "PAGE", 2)
        monkeypatch.setattr("tidegate.engine.audit.PAGE", 2)
        monkeypatch.setattr(audit_slices, "MAX_PAGES", 1)
        await world.audit.run(full=False, sweep_s=DAY_S)
        first = await audit_progress.current(store, DAY_S)
        assert first.transfers == 2
        assert not first.over
        other = Audit(store, world.core, FLOWS, world.alerts.append)
        assert await swept(world, other) == []
        await other.close()
        [(transfers, owners)] = await store.run(
            "SELECT (SELECT count(*) FROM transfers),"
            " (SELECT count(DISTINCT owner) FROM ledger_accounts)",
            {},
        )
        over = await audit_progress.current(store, DAY_S)
        assert (over.transfers, over.owners) == (transfers, owners), "each of them once"
        assert 4 * 3600 < await audit_progress.age_s(store) < 6 * 3600, "since the sweep began"

    play_audited(scene)


@pytest.mark.slow
def test_the_next_sweep_begins_when_its_time_has_come(play_audited: Play) -> None:
    async def scene(world: World) -> None:
        store = world.gate.store
        await idle(world)
        # The first sweep began when the tests' database was made, however long ago that is.
        await world.corrupt("UPDATE audit_sweep SET begun_at = now()")
        assert await swept(world) == []
        assert await audit_progress.age_s(store) < 600
        read = (await world.audit.run(full=False, sweep_s=DAY_S)).ok, world.audit.read["transfers"]
        assert read == (True, 0), "nothing is due"
        await world.corrupt("UPDATE audit_sweep SET begun_at = now() - interval '25 hours'")
        fresh = await audit_progress.current(store, DAY_S)
        assert (fresh.over, fresh.transfers, fresh.owners) == (False, 0, 0)

    play_audited(scene)


def test_a_slice_keeps_pace_with_its_period() -> None:
    hour = slice_of(BEGUN._replace(elapsed_s=30.0), DAY_S)
    assert hour is not None
    assert hour.pages * PAGE >= BEGUN.about_transfers * 30 / DAY_S
    assert hour.owners >= BEGUN.about_owners * 30 / DAY_S
    ahead = slice_of(BEGUN._replace(elapsed_s=30.0, transfers=10**6, owners=10**5), DAY_S)
    assert ahead is not None
    assert ahead.pages == 1


def test_a_slice_is_bounded_however_far_it_is_behind() -> None:
    late = slice_of(BEGUN._replace(elapsed_s=100 * DAY_S), DAY_S)
    assert late == (BEGUN._replace(elapsed_s=100 * DAY_S), MAX_PAGES, MAX_OWNERS)
    back = slice_of(BEGUN._replace(elapsed_s=-DAY_S), DAY_S)
    assert back is not None
    assert back.pages == 1, "the clock was put back"


def test_a_sweep_that_is_over_has_no_slice() -> None:
    assert slice_of(BEGUN._replace(id=LAST_ID, owner=LAST_OWNER), DAY_S) is None
