"""Every rule of the auditor can be broken, and is seen to be."""

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
from tidegate.simulation.auditor import CORE, LEDGER, Auditor, AuditorView, chain
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
BORN = transfer_with(PARTIES, {}, id=ID, owner=1, amount=10, asset_id=ASSET, **KIND)
FIRST = ("INIT", "SOURCE_PENDING", "SOURCE_DONE", "TARGET_PENDING")
ACCOUNT = Account(1, FUNDING, ASSET)
DEBIT = LedgerOperation(ID, 0, ACCOUNT, "debit", 10, None, "done", "", -10, 0, 90)


class Desk:
    """An auditor, and somebody who shows it what it would see."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.dead: set[str] = set()
        eyes = AuditorView(
            lambda: self.now_s, lambda worker: worker not in self.dead, lambda *_: None
        )
        self.auditor = Auditor(FLOWS, eyes)
        self.auditor.endow((LEDGER, 1, FUNDING, ASSET), 100)
        self.answers: list[MemoryAnswer] = []
        self.transfer = BORN

    def move(self, path: Sequence[str], verb: str, answer: str, **changes: Any) -> dict[Any, Any]:
        entry = HistoryEntry(self.transfer.version, tuple(path), verb, answer)
        head = chain(self.transfer.head_hash, self.transfer, entry, 5)
        self.answers.append(MemoryAnswer(entry, 5, head))
        state = path[-1]
        lane = None if FLOWS["internal_transfer"].is_end(state) else CORE
        self.transfer = self.transfer.but(
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

    def born(self) -> None:
        balance = LedgerBalance(90, 0, "ACTIVE")
        money = {(OPERATIONS, ID): (DEBIT,), (ACCOUNTS, ACCOUNT): balance}
        self.commit(self.move(FIRST, "debit", "done") | money)
        assert self.auditor.violations == []

    def saw(self, words: str) -> bool:
        return any(words in violation for violation in self.auditor.violations)


@pytest.fixture
def desk() -> Desk:
    desk = Desk()
    desk.born()
    return desk


def test_a_state_without_its_effects(desk: Desk) -> None:
    desk.commit(desk.move(("TARGET_PENDING", "COMMITTED"), "credit", "done"))
    assert desk.saw("is in COMMITTED, and this was done: source.debit")


def test_an_effect_that_the_state_does_not_allow(desk: Desk) -> None:
    again = DEBIT._replace(version=1)
    balance = LedgerBalance(80, 0, "ACTIVE")
    desk.commit({(OPERATIONS, ID): (DEBIT, again), (ACCOUNTS, ACCOUNT): balance})
    desk.commit(desk.row())
    assert desk.saw("source.debit, source.debit")


def test_an_effect_of_another_amount(desk: Desk) -> None:
    odd = DEBIT._replace(version=1, verb="refund", delta=9)
    desk.commit({(OPERATIONS, ID): (DEBIT, odd)})
    assert desk.saw("is not what")


def test_money_for_a_transfer_that_does_not_exist(desk: Desk) -> None:
    stranger = UUID(int=8 << 80)
    desk.commit({(OPERATIONS, stranger): (DEBIT._replace(transfer_id=stranger),)})
    assert desk.saw("does not exist")


def test_a_balance_that_does_not_follow(desk: Desk) -> None:
    desk.commit({(ACCOUNTS, ACCOUNT): LedgerBalance(91, 0, "ACTIVE")})
    assert desk.saw("holds 91, and its operations make 90")


def test_an_overdrawn_account(desk: Desk) -> None:
    desk.commit({(OPERATIONS, ID): (DEBIT, DEBIT._replace(version=1, delta=-95))})
    assert desk.saw("is overdrawn by 5")


def test_an_operation_that_changes(desk: Desk) -> None:
    desk.commit({(OPERATIONS, ID): (DEBIT._replace(result="rejected"),)})
    assert desk.saw("was changed or repeated")


def test_an_edge_that_the_flow_does_not_have(desk: Desk) -> None:
    desk.commit(desk.move(("TARGET_PENDING", "ROLLED_BACK"), "refund", "done"))
    assert desk.saw("does not allow")


def test_a_terminal_state_that_changes(desk: Desk) -> None:
    desk.commit(desk.move(("TARGET_PENDING", "COMMITTED"), "credit", "done"))
    desk.commit(desk.row())
    assert desk.saw("had ended in COMMITTED, and was written again")


def test_a_history_that_is_rewritten_or_does_not_chain(desk: Desk) -> None:
    desk.answers[0] = desk.answers[0]._replace(at_us=6)
    desk.commit(desk.move(("TARGET_PENDING", "COMPENSATING"), "credit", "rejected"))
    assert desk.saw("was rewritten")
    other = Desk()
    other.transfer = BORN.but(head_hash=bytes(31) + b"x")
    other.commit(other.move(FIRST, "debit", "done"))
    assert other.saw("the chain is broken")


def test_a_row_that_its_history_does_not_lead_to(desk: Desk) -> None:
    desk.transfer = desk.transfer.but(version=5)
    desk.commit(desk.row())
    assert desk.saw("does not lead to its row")


def test_another_amount_than_at_birth(desk: Desk) -> None:
    desk.transfer = desk.transfer.but(amount=11)
    desk.commit(desk.row())
    assert desk.saw("became another transfer")


def asked(outcome: int, position: int) -> tuple[bytes, bytes]:
    key = KEY.pack(ID.bytes, 1)
    question = OPERATION.pack(key, 2, 0, 0, bytes(13), (10).to_bytes(16))
    return question, STAMP.pack(1, position, 0) + ANSWER.pack(outcome, position)


def test_an_acknowledgement_of_what_is_not_durable(desk: Desk) -> None:
    desk.auditor.answered(*asked(1, 3))
    assert desk.saw("acknowledges 3, and 0 is durable")


def test_two_answers_under_one_key(desk: Desk) -> None:
    desk.auditor.position = 3
    desk.auditor.answered(*asked(1, 3))
    assert desk.auditor.violations == []
    desk.auditor.answered(*asked(12, 3))
    assert desk.saw("said otherwise before")


def test_a_core_that_comes_back_with_less(desk: Desk) -> None:
    desk.auditor.position = desk.auditor.acknowledged = 3
    desk.auditor.opened(SimInode("log-x"), 2, {})
    assert desk.saw("came back at position 2")
    desk.auditor.opened(SimInode("log-x"), 3, {(CORE, 1, SPOT, ASSET): 5})
    assert desk.saw("other balances")


@pytest.mark.parametrize("alarm", [Alarm.PAGE, Alarm.CRITICAL, Alarm.HALT])
def test_an_alarm_about_nothing(desk: Desk, alarm: Alarm) -> None:
    desk.auditor.alerted(
        Alert(alarm, AlertCode.TRANSFER_STUCK, "busy", CORE, ID, "TARGET_PENDING"), "worker"
    )
    assert desk.saw("a false alarm")


def test_nobody_is_told_of_what_is_stuck(desk: Desk) -> None:
    desk.now_s = 100.0
    desk.commit(desk.row())
    desk.commit(desk.move(("TARGET_PENDING", "COMPENSATING"), "credit", "rejected"))
    assert desk.saw("was stuck in TARGET_PENDING, and nobody was told")


def test_what_is_stuck_and_told_of_is_well(desk: Desk) -> None:
    desk.now_s = 100.0
    desk.commit(desk.row())
    desk.auditor.alerted(
        Alert(Alarm.CRITICAL, AlertCode.TRANSFER_STUCK, "busy", CORE, ID), "worker"
    )
    desk.commit(desk.move(("TARGET_PENDING", "COMPENSATING"), "credit", "rejected"))
    assert desk.auditor.violations == []


@pytest.mark.parametrize("died", [True, False])
def test_a_page_that_a_clock_caused_early_is_owed_by_whoever_marked_it(
    desk: Desk, *, died: bool
) -> None:
    """The database's clock is ahead: by the true time, the transfer does not wait for long yet."""
    desk.now_s = 5.0
    desk.transfer = desk.transfer.but(paged=True)
    desk.commit(desk.row(), by="first")
    if died:
        desk.dead.add("first")
    desk.now_s = 100.0
    desk.commit(desk.row(), by="second")
    desk.transfer = desk.transfer.but(paged=False)
    desk.commit(desk.move(("TARGET_PENDING", "COMPENSATING"), "credit", "rejected"), by="second")
    assert desk.saw("nobody was told") is not died


def test_what_has_not_ended_and_books_that_are_off(desk: Desk) -> None:
    desk.auditor.finish({(LEDGER, 1, FUNDING, ASSET): 90}, {})
    assert desk.saw("1 transfers have not ended")
    assert desk.saw("hold 90 instead of 100")
    assert not desk.saw("other balances")
