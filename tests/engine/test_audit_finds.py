"""The audit finds what is wrong, in either system, and halts."""

from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest

from tests.crash.scenes import ASSET, parts, request_of
from tests.engine.audited import BASE, Play, World
from tidegate.core.answers import Alarm
from tidegate.core.flow import Verb
from tidegate.core.kind import Party
from tidegate.core.request import Request
from tidegate.core.transfer import Question
from tidegate.engine.audit import Audit
from tidegate.engine.audit_rules import AuditPass
from tidegate.engine.audit_slices import AuditSlice
from tidegate.engine.gate import CORE
from tidegate.engine.pending_request import Receipt
from tidegate.engine.request_forms import LEDGER, ExternalTransfer
from tidegate.flows import FLOWS
from tidegate.systems.ledger import FUNDING

pytestmark = pytest.mark.slow

ONE_MORE = "UPDATE ledger_accounts SET available = available + 1 WHERE owner = %s AND book = %s"
ONE_LESS = ONE_MORE.replace("+", "-")


class Overtaken(Audit):
    """Runs `after_second` after the second pass, before it halts."""

    passes = 0
    after_second: Callable[[], Awaitable[None]]

    async def run_pass(self, *, full: bool, part: AuditSlice | None = None) -> AuditPass:
        found = await super().run_pass(full=full, part=part)
        self.passes += 1
        if self.passes == 2:
            await self.after_second()
        return found


@pytest.mark.parametrize("full", [True, False])
def test_a_corrupted_balance_row_is_found_and_halts(play_audited: Play, full: bool) -> None:
    async def scene(world: World) -> None:
        await world.traffic()
        assert (await world.audit.run(full=full)).ok
        await world.corrupt(ONE_MORE, BASE, FUNDING)
        await world.expect_violation("off by 1 smallest units", full=full)
        refused = await world.gate.engine.transfer(request_of(parts(BASE)[0], 99), 1)
        assert not isinstance(refused, Receipt)

    play_audited(scene)


@pytest.mark.parametrize("repaired", [True, False])
def test_a_resume_during_an_audit_is_not_undone_by_earlier_findings(
    play_audited: Play, repaired: bool
) -> None:
    async def scene(world: World) -> None:
        async def resume() -> None:
            if repaired:
                await world.corrupt(ONE_LESS, BASE, FUNDING)
            await world.gate.store.resume("the row was looked at", "operator")

        await world.traffic()
        await world.corrupt(ONE_MORE, BASE, FUNDING)
        await world.gate.store.halt("something is wrong", "operator")
        audit = Overtaken(world.gate.store, world.core, FLOWS, world.alerts.append)
        audit.after_second = resume
        report = await audit.run()
        await audit.close()
        assert (report.ok, report.halted) == (repaired, not repaired)
        assert audit.passes == 3, "it audits again after the resume"
        assert len(world.alerts) == (0 if repaired else 1)

    play_audited(scene)


def test_a_resume_with_books_that_still_differ_halts_again(play_audited: Play) -> None:
    async def scene(world: World) -> None:
        await world.traffic()
        await world.corrupt(ONE_MORE, BASE, FUNDING)
        await world.expect_violation("off by 1 smallest units")
        await world.gate.store.resume("it looks well", "operator")
        assert (await world.audit.run()).halted
        assert [alert.alarm for alert in world.alerts] == [Alarm.HALT, Alarm.HALT]

    play_audited(scene)


def test_two_balances_whose_errors_cancel_are_found(play_audited: Play) -> None:
    async def scene(world: World) -> None:
        await world.traffic()
        for owner, change in ((BASE, 1), (BASE + 1, -1)):
            await world.corrupt(
                "UPDATE ledger_accounts SET available = available + %s"
                " WHERE owner = %s AND book = 'FUNDING'",
                change,
                owner,
            )
        await world.expect_violation(
            f"owner {BASE}, asset {ASSET}: the sum of the books is off by 1"
        )
        report = await world.audit.run()
        assert f"account FUNDING of owner {BASE}, asset {ASSET}: the balance does not" in "".join(
            report.violations
        )
        assert report.assets["USDT"].gap == "0"

    play_audited(scene)


@pytest.mark.parametrize(
    ("statement", "violation"),
    [
        ("UPDATE ledger_operations SET balance_after = 7 WHERE {id} AND version = 0", "follow"),
        ("UPDATE ledger_operations SET delta = delta - 1 WHERE {id} AND version = 0", "follow"),
        ("UPDATE ledger_operations SET amount = 1 WHERE {id}", "does not match its transfer"),
        (
            "UPDATE ledger_operations SET result = 'rejected', reason = 'X', delta = 0 WHERE {id}",
            'system ledger has recorded "rejected" under version 0',
        ),
        (
            "DELETE FROM ledger_operations WHERE {id}",
            "system ledger has recorded nothing under version 0",
        ),
        ("UPDATE history SET actor = 'me' WHERE {id} AND version = 1", "does not match its hash"),
        ("UPDATE history SET at = at + interval '1 us' WHERE {id}", "does not match its hash"),
        ("DELETE FROM history WHERE {id} AND version = 0", "the history has 1 answers"),
        ("DELETE FROM history WHERE {id}", "the history has 0 answers"),
        ("UPDATE transfers SET head_hash = 'x' WHERE id = %s", "the head hash is not the hash"),
        ("UPDATE transfers SET state = 'ROLLED_BACK' WHERE id = %s", "leads to state COMMITTED"),
        ("UPDATE transfers SET state = 'ROLLED_BACK' WHERE id = %s", "the money is at target"),
        ("UPDATE transfers SET version = version + 1 WHERE id = %s", "the version is 3"),
        ("UPDATE transfers SET flow = 'none' WHERE id = %s", "does not know the flow none"),
        (
            "UPDATE transfers SET parties = parties - 'target' WHERE id = %s",
            "no party has the role target",
        ),
        ("DELETE FROM transfers WHERE id = %s", "does not exist"),
        ("DELETE FROM cids WHERE {id}", "does not lead to this transfer"),
    ],
)
@pytest.mark.slow
def test_a_corrupted_row_is_found_and_halts(
    play_audited: Play, statement: str, violation: str
) -> None:
    async def scene(world: World) -> None:
        await world.gate.deposit(ExternalTransfer("FUNDING", "USDT", "50", "d"), BASE)
        party, target = Party(LEDGER, FUNDING, BASE), Party(CORE, "SPOT", BASE)
        wanted = {"source": party, "target": target}
        done = await world.gate.engine.transfer(
            Request(BASE, "internal_transfer", wanted, ASSET, 5), 20
        )
        assert isinstance(done, Receipt)
        assert done.transfer.state == "COMMITTED"
        await world.gate.store.halt("so that no engine claims it", "test")
        await world.corrupt(statement.replace("{id}", "transfer_id = %s"), done.transfer.id)
        await world.expect_violation(violation)

    play_audited(scene)


@pytest.mark.parametrize(
    ("statement", "violation"),
    [
        ("UPDATE transfers SET state = 'FAILED' WHERE id = %s", "leads to state COMMITTED"),
        ("UPDATE ledger_operations SET balance_after = 7 WHERE transfer_id = %s", "follow"),
    ],
)
def test_a_corrupted_new_transfer_is_found_by_the_next_incremental_audit(
    play_audited: Play, statement: str, violation: str
) -> None:
    async def scene(world: World) -> None:
        await world.traffic()
        assert (await world.audit.run(full=False)).ok
        done = await world.gate.engine.transfer(request_of(parts(BASE)[0], 70), 20)
        assert isinstance(done, Receipt)
        await world.corrupt(statement, done.transfer.id)
        await world.expect_violation(violation, full=False)

    play_audited(scene)


@pytest.mark.parametrize("full", [True, False])
def test_a_credit_in_the_core_that_no_transfer_asked_for_is_found(
    play_audited: Play, full: bool
) -> None:
    async def scene(world: World) -> None:
        await world.traffic()
        assert (await world.audit.run(full=full)).ok
        spot = Party(CORE, "SPOT", BASE)
        planted = Question(UUID(int=5 << 90), 0, Verb.CREDIT, spot, ASSET, 3)
        await world.core.ask([planted])
        await world.expect_violation("belongs to no known transfer", full=full)
        report = await world.audit.run(full=full)
        assert report.assets["USDT"].gap == "0.000003"

    play_audited(scene)


def test_planted_operations_that_cancel_are_found_by_the_next_audit(play_audited: Play) -> None:
    async def scene(world: World) -> None:
        await world.traffic()
        assert (await world.audit.run(full=False)).ok
        spot = Party(CORE, "SPOT", BASE)
        for number, verb in ((1, Verb.CREDIT), (2, Verb.DEBIT)):
            await world.core.ask([Question(UUID(int=number << 90), 0, verb, spot, ASSET, 3)])
        await world.expect_violation("belongs to no known transfer", full=False)

    play_audited(scene)


def test_an_operation_under_a_finished_transfers_next_key_is_found(play_audited: Play) -> None:
    async def scene(world: World) -> None:
        await world.traffic()
        id_ = await world.some_transfer("COMMITTED")
        [row] = await world.gate.store.find([id_])
        spot = Party(CORE, "SPOT", BASE)
        planted = Question(id_, row.version, Verb.CREDIT, spot, ASSET, row.amount)
        await world.core.ask([planted])
        await world.expect_violation(
            "moved money under version 2, but the history contains no such answer"
        )

    play_audited(scene)
