"""The full audit in slices: old transfers are judged again, a bounded number at a time."""

import asyncio
from uuid import UUID

import pytest

from tests.engine.audited import BASE, Play, World
from tidegate.core.account import Account
from tidegate.core.kind import Party
from tidegate.core.request import Request
from tidegate.engine import audit_slices
from tidegate.engine.account_checks import account_problem
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
    """All transfers have ended, and nothing is new since the last audit."""
    await world.traffic()
    assert (await world.audit.run(full=False)).ok
    await world.corrupt("UPDATE transfers SET created_at = created_at - interval '1 hour'")
    assert (await world.audit.run(full=False)).ok


async def swept(world: World, audit: Audit | None = None) -> list[str]:
    """The violations found by a complete sweep."""
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
            f"owner {BASE}, asset 3: the sum of the books is off by 1",
        ),
        (
            ((1, BASE, "FUNDING"), (-1, BASE, "OUTSIDE")),
            account_problem(Account(BASE, "FUNDING", 3)),
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
        assert (await world.audit.run(full=False)).ok, (
            "an incremental audit does not read these accounts"
        )
        found = await swept(world)
        assert any(violation in text for text in found), found
        assert await world.gate.store.halted()

    play_audited(scene)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statement", "violation"),
    [
        ("UPDATE history SET reason = 'x' WHERE transfer_id = %s", "does not match its hash"),
        (
            "DELETE FROM ledger_operations WHERE transfer_id = %s",
            "system ledger has recorded nothing under",
        ),
        ("DELETE FROM transfers WHERE id = %s", "does not exist"),
    ],
)
def test_a_corrupted_old_transfer_is_found(
    play_audited: Play, statement: str, violation: str
) -> None:
    async def scene(world: World) -> None:
        await idle(world)
        await world.corrupt(statement, await world.some_transfer("COMMITTED"))
        found = await swept(world)
        assert any(violation in text for text in found), found

    play_audited(scene)


@pytest.mark.slow
def test_an_owner_without_any_of_its_accounts_is_found(play_audited: Play) -> None:
    """Together the accounts hold 0, so every sum agrees without them."""

    async def scene(world: World) -> None:
        await idle(world)
        for owner in (BASE - 1, BASE + 9):
            await world.gate.deposit(ExternalTransfer("FUNDING", "USDT", "7", "d"), owner)
        assert (await world.audit.run(full=False)).ok, "now their deposits are old"
        for owner in (BASE - 1, BASE + 9):
            await world.corrupt("DELETE FROM ledger_accounts WHERE owner = %s", owner)
        found = await swept(world)
        assert sorted(found) == [
            account_problem(Account(owner, book, 3))
            for book in ("FUNDING", "OUTSIDE")
            for owner in (BASE - 1, BASE + 9)
        ]

    play_audited(scene)


PAYER, MEMBERS = 9_000, range(1_001, 1_061)


async def paid_by_one(world: World) -> Audit:
    """One owner pays many, whose accounts then do not follow from their own transfers."""
    owners = (PAYER, *MEMBERS)
    deposits = (
        world.gate.deposit(ExternalTransfer("FUNDING", "USDT", "1", "d"), owner) for owner in owners
    )
    await asyncio.gather(*deposits)
    source = Party(LEDGER, FUNDING, PAYER)
    for member in MEMBERS:
        parties = {"source": source, "target": Party(LEDGER, FUNDING, member)}
        request = Request(PAYER, "internal_transfer", parties, 3, 5)
        receipt = await world.gate.engine.transfer(request, 20)
        assert isinstance(receipt, Receipt)
        assert receipt.transfer.state == "COMMITTED"
    audit = Audit(
        world.gate.store, world.core, FLOWS, world.alerts.append, AuditScope(single_owner=False)
    )
    assert (await audit.run(full=False)).ok
    await world.corrupt("UPDATE transfers SET created_at = created_at - interval '1 hour'")
    assert (await audit.run(full=False)).ok
    return audit


@pytest.mark.slow
@pytest.mark.parametrize("corrupted", [MEMBERS[0], MEMBERS[30], MEMBERS[-1]])
def test_an_error_among_many_false_suspects_is_found(
    play_audited: Play, monkeypatch: pytest.MonkeyPatch, corrupted: int
) -> None:
    async def scene(world: World) -> None:
        audit = await paid_by_one(world)
        await world.corrupt(CHANGE, 1, corrupted, "FUNDING")
        await world.corrupt(CHANGE, -1, corrupted, "OUTSIDE")
        found = await swept(world, audit)
        assert sorted(found) == [
            account_problem(Account(corrupted, book, 3)) for book in ("FUNDING", "OUTSIDE")
        ]
        await audit.close()

    monkeypatch.setattr("tidegate.engine.audit.slice_of", all_members)
    play_audited(scene)


def all_members(sweep: AuditProgress, _: float) -> AuditSlice | None:
    """All members in one slice, without the payer."""
    return None if sweep.over else AuditSlice(sweep, 1, len(MEMBERS))


@pytest.mark.slow
def test_many_false_suspects_are_no_violation_and_the_sweep_ends(
    play_audited: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(world: World) -> None:
        audit = await paid_by_one(world)
        assert await swept(world, audit) == []
        over = await audit_progress.current(world.gate.store, DAY_S)
        assert over.owners == len(MEMBERS) + 1, "each of them once"
        await audit.close()

    monkeypatch.setattr("tidegate.engine.audit.slice_of", all_members)
    play_audited(scene)


@pytest.mark.slow
def test_a_sweep_continues_in_another_process_and_verifies_everything(
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
        # The first sweep began when the tests' database was created, which may be long ago.
        await world.corrupt("UPDATE audit_sweep SET begun_at = now()")
        assert await swept(world) == []
        assert await audit_progress.age_s(store) < 600
        read = (await world.audit.run(full=False, sweep_s=DAY_S)).ok, world.audit.read["transfers"]
        assert read == (True, 0), "nothing is due"
        await world.corrupt("UPDATE audit_sweep SET begun_at = now() - interval '25 hours'")
        sweep = await audit_progress.current(store, DAY_S)
        assert (sweep.over, sweep.transfers, sweep.owners) == (False, 0, 0)

    play_audited(scene)


def test_a_slice_keeps_pace_with_its_period() -> None:
    due = slice_of(BEGUN._replace(elapsed_s=30.0), DAY_S)
    assert due is not None
    assert due.pages * PAGE >= BEGUN.about_transfers * 30 / DAY_S
    assert due.owners >= BEGUN.about_owners * 30 / DAY_S
    ahead = slice_of(BEGUN._replace(elapsed_s=30.0, transfers=10**6, owners=10**5), DAY_S)
    assert ahead is not None
    assert ahead.pages == 1


def test_a_slice_is_bounded_however_far_it_is_behind() -> None:
    late = slice_of(BEGUN._replace(elapsed_s=100 * DAY_S), DAY_S)
    assert late == (BEGUN._replace(elapsed_s=100 * DAY_S), MAX_PAGES, MAX_OWNERS)
    back = slice_of(BEGUN._replace(elapsed_s=-DAY_S), DAY_S)
    assert back is not None
    assert back.pages == 1, "the clock was set back"


def test_a_sweep_that_is_over_has_no_slice() -> None:
    assert slice_of(BEGUN._replace(id=LAST_ID, owner=LAST_OWNER), DAY_S) is None
