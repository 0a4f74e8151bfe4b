"""The auditor reports a violation of each of its rules."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from tidegate.core.account import Account
from tidegate.core.answers import Alarm
from tidegate.core.kind import Party, transfer_with
from tidegate.core.transfer import HistoryEntry
from tidegate.core.wire import ANSWER, KEY, OPERATION, STAMP
from tidegate.engine.alerts import Alert, AlertCode
from tidegate.flows import FLOWS
from tidegate.simulation.audited_transfer import chain
from tidegate.simulation.auditor import CORE, LEDGER, Auditor, AuditorView
from tidegate.simulation.disk import SimInode
from tidegate.simulation.workload import ASSET, SPOT
from tidegate.store.memory_store import HISTORY
from tidegate.store.memory_tables import TRANSFERS, MemoryAnswer, MemoryRow
from tidegate.systems.ledger import FUNDING
from tidegate.systems.ledger.judge import LedgerBalance, LedgerOperation
from tidegate.systems.ledger.memory import ACCOUNTS, OPERATIONS

ID = UUID(int=7 << 80)
PARTIES = {"source": Party(LEDGER, FUNDING, 1), "target": Party(CORE, SPOT, 1)}
KIND: dict[str, Any] = {"flow": "internal_transfer", "state": "TARGET_PENDING", "lane": CORE}
CREATED = transfer_with(PARTIES, {}, id=ID, owner=1, amount=10, asset_id=ASSET, **KIND)
FIRST = ("INIT", "SOURCE_PENDING", "SOURCE_DONE", "TARGET_PENDING")
ACCOUNT = Account(1, FUNDING, ASSET)
DEBIT = LedgerOperation(ID, 0, ACCOUNT, "debit", 10, None, "done", "", -10, 0, 90)


class AuditorBench:
    """An auditor, and the means to commit rows to it."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.dead: set[str] = set()
        view = AuditorView(
            lambda: self.now_s, lambda worker: worker not in self.dead, lambda *_: None
        )
        self.auditor = Auditor(FLOWS, view)
        self.auditor.grant((LEDGER, 1, FUNDING, ASSET), 100)
        self.answers: list[MemoryAnswer] = []
        self.transfer = CREATED

    def move(self, path: Sequence[str], verb: str, answer: str, **changes: Any) -> dict[Any, Any]:
        entry = HistoryEntry(self.transfer.version, tuple(path), verb, answer)
        head = chain(self.transfer.head_hash, self.transfer, entry, 5)
        self.answers.append(MemoryAnswer(entry, 5, head))
        state = path[-1]
        lane = None if FLOWS["internal_transfer"].is_end(state) else CORE
        self.transfer = self.transfer.replace(
            state=state,
            lane=lane,
            version=self.transfer.version + 1,
            head_hash=head,
            **changes,
        )
        return self.row() | {(HISTORY, ID): tuple(self.answers)}

    def row(self) -> dict[Any, Any]:
        return {(TRANSFERS, ID): MemoryRow(self.transfer, 0.0, None)}

    def commit(self, written: dict[Any, Any], by: str = "worker") -> None:
        self.auditor.committed(written, frozenset(), by)

    def create(self) -> None:
        balance = LedgerBalance(90, 0, "ACTIVE")
        money = {(OPERATIONS, ID): (DEBIT,), (ACCOUNTS, ACCOUNT): balance}
        self.commit(self.move(FIRST, "debit", "done") | money)
        assert self.auditor.violations == []

    def reported(self, text: str) -> bool:
        return any(text in violation for violation in self.auditor.violations)


@pytest.fixture
def bench() -> AuditorBench:
    bench = AuditorBench()
    bench.create()
    return bench


def test_a_state_without_its_effects(bench: AuditorBench) -> None:
    bench.commit(bench.move(("TARGET_PENDING", "COMMITTED"), "credit", "done"))
    assert bench.reported("is in COMMITTED, but these effects happened: source.debit")


def test_an_effect_that_the_state_does_not_allow(bench: AuditorBench) -> None:
    again = DEBIT._replace(version=1)
    balance = LedgerBalance(80, 0, "ACTIVE")
    bench.commit({(OPERATIONS, ID): (DEBIT, again), (ACCOUNTS, ACCOUNT): balance})
    bench.commit(bench.row())
    assert bench.reported("source.debit, source.debit")


def test_an_effect_of_another_amount(bench: AuditorBench) -> None:
    odd = DEBIT._replace(version=1, verb="refund", delta=9)
    bench.commit({(OPERATIONS, ID): (DEBIT, odd)})
    assert bench.reported("does not belong to")


def test_money_for_a_transfer_that_does_not_exist(bench: AuditorBench) -> None:
    unknown = UUID(int=8 << 80)
    bench.commit({(OPERATIONS, unknown): (DEBIT._replace(transfer_id=unknown),)})
    assert bench.reported("does not exist")


def test_a_balance_that_differs_from_the_operations(bench: AuditorBench) -> None:
    bench.commit({(ACCOUNTS, ACCOUNT): LedgerBalance(91, 0, "ACTIVE")})
    assert bench.reported("holds 91, but its operations sum to 90")


def test_an_overdrawn_account(bench: AuditorBench) -> None:
    bench.commit({(OPERATIONS, ID): (DEBIT, DEBIT._replace(version=1, delta=-95))})
    assert bench.reported("is overdrawn by 5")


def test_an_operation_that_changes(bench: AuditorBench) -> None:
    bench.commit({(OPERATIONS, ID): (DEBIT._replace(result="rejected"),)})
    assert bench.reported("was changed or repeated")


def test_an_answer_that_the_flow_does_not_allow(bench: AuditorBench) -> None:
    bench.commit(bench.move(("TARGET_PENDING", "ROLLED_BACK"), "refund", "done"))
    assert bench.reported("does not allow")


def test_a_terminal_state_that_changes(bench: AuditorBench) -> None:
    bench.commit(bench.move(("TARGET_PENDING", "COMMITTED"), "credit", "done"))
    bench.commit(bench.row())
    assert bench.reported("had ended in COMMITTED and was written again")


def test_a_history_that_is_rewritten_or_does_not_chain(bench: AuditorBench) -> None:
    bench.answers[0] = bench.answers[0]._replace(at_us=6)
    bench.commit(bench.move(("TARGET_PENDING", "COMPENSATING"), "credit", "rejected"))
    assert bench.reported("was rewritten")
    other = AuditorBench()
    other.transfer = CREATED.replace(head_hash=bytes(31) + b"x")
    other.commit(other.move(FIRST, "debit", "done"))
    assert other.reported("the chain is broken")


def test_a_row_that_does_not_match_its_history(bench: AuditorBench) -> None:
    bench.transfer = bench.transfer.replace(version=5)
    bench.commit(bench.row())
    assert bench.reported("does not lead to its row")


def test_an_amount_that_changes_after_creation(bench: AuditorBench) -> None:
    bench.transfer = bench.transfer.replace(amount=11)
    bench.commit(bench.row())
    assert bench.reported("became another transfer")


def question_and_reply(outcome: int, position: int) -> tuple[bytes, bytes]:
    key = KEY.pack(ID.bytes, 1)
    question = OPERATION.pack(key, 2, 0, 0, bytes(13), (10).to_bytes(16))
    return question, STAMP.pack(1, position, 0) + ANSWER.pack(outcome, position)


def test_an_acknowledgement_of_a_position_that_is_not_durable(bench: AuditorBench) -> None:
    bench.auditor.answered(*question_and_reply(1, 3))
    assert bench.reported("acknowledges 3, but 0 is durable")


def test_two_different_answers_for_one_key(bench: AuditorBench) -> None:
    bench.auditor.position = 3
    bench.auditor.answered(*question_and_reply(1, 3))
    assert bench.auditor.violations == []
    bench.auditor.answered(*question_and_reply(12, 3))
    assert bench.reported("before, it differed")


def test_a_core_that_restarts_with_less_than_before(bench: AuditorBench) -> None:
    bench.auditor.position = bench.auditor.acknowledged = 3
    bench.auditor.opened(SimInode("log-x"), 2, {})
    assert bench.reported("restarted at position 2")
    bench.auditor.opened(SimInode("log-x"), 3, {(CORE, 1, SPOT, ASSET): 5})
    assert bench.reported("other balances")


@pytest.mark.parametrize("alarm", [Alarm.PAGE, Alarm.CRITICAL, Alarm.HALT])
def test_an_alert_without_a_reason(bench: AuditorBench, alarm: Alarm) -> None:
    bench.auditor.alerted(
        Alert(alarm, AlertCode.TRANSFER_STUCK, "busy", CORE, ID, "TARGET_PENDING"), "worker"
    )
    assert bench.reported("a false alarm")


def test_a_stuck_transfer_without_an_alert(bench: AuditorBench) -> None:
    bench.now_s = 100.0
    bench.commit(bench.row())
    bench.commit(bench.move(("TARGET_PENDING", "COMPENSATING"), "credit", "rejected"))
    assert bench.reported("was stuck in TARGET_PENDING without an alert")


def test_a_stuck_transfer_with_an_alert_is_no_violation(bench: AuditorBench) -> None:
    bench.now_s = 100.0
    bench.commit(bench.row())
    bench.auditor.alerted(
        Alert(Alarm.CRITICAL, AlertCode.TRANSFER_STUCK, "busy", CORE, ID), "worker"
    )
    bench.commit(bench.move(("TARGET_PENDING", "COMPENSATING"), "credit", "rejected"))
    assert bench.auditor.violations == []


@pytest.mark.parametrize("died", [True, False])
def test_the_worker_that_marked_a_transfer_as_paged_must_alert_unless_it_dies(
    bench: AuditorBench, *, died: bool
) -> None:
    """The database's clock is ahead: by the true time, the transfer has not waited for long."""
    bench.now_s = 5.0
    bench.transfer = bench.transfer.replace(paged=True)
    bench.commit(bench.row(), by="first")
    if died:
        bench.dead.add("first")
    bench.now_s = 100.0
    bench.commit(bench.row(), by="second")
    bench.transfer = bench.transfer.replace(paged=False)
    bench.commit(bench.move(("TARGET_PENDING", "COMPENSATING"), "credit", "rejected"), by="second")
    assert bench.reported("without an alert") is not died


def test_open_transfers_and_wrong_balances_at_the_end(bench: AuditorBench) -> None:
    bench.auditor.finish({(LEDGER, 1, FUNDING, ASSET): 90}, {})
    assert bench.reported("1 transfers have not ended")
    assert bench.reported("hold 90 instead of 100")
    assert not bench.reported("other balances")
