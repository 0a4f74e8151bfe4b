"""The pure audit rules: where a transfer's money is by the records of the systems."""

from enum import StrEnum
from uuid import UUID

import msgspec
import pytest

from tidegate.core import wire
from tidegate.core.account import Account
from tidegate.core.answers import Answer, Done, Rejected, Unknown
from tidegate.core.flow import Ask, End, Flow, Place, Verb
from tidegate.core.kind import GENESIS, Party
from tidegate.core.transfer import HistoryEntry
from tidegate.engine.audit_rules import (
    ExpectedRecord,
    SystemRecord,
    core_fits,
    judge,
    ledger_records,
)
from tidegate.store.audit_reads import AuditCase, AuditedRow, HistoryRow, LedgerRow, TransferFacts

ID = UUID(int=9)


class State(StrEnum):
    HOLDING = "HOLDING"
    DECIDING = "DECIDING"
    CAPTURING = "CAPTURING"
    PAYING = "PAYING"
    REFUNDING = "REFUNDING"
    RELEASING = "RELEASING"
    PAID = "PAID"
    FREED = "FREED"
    NEVER = "NEVER"


HELD = Flow(
    "held",
    first=State.HOLDING,
    rows={
        State.HOLDING: Ask(
            Place.SOURCE, "source", Verb.HOLD, done=State.DECIDING, rejected=State.NEVER
        ),
        State.DECIDING: Ask(
            Place.HELD, "judge", Verb.CHECK, done=State.CAPTURING, rejected=State.RELEASING
        ),
        State.CAPTURING: Ask(Place.HELD, "source", Verb.CAPTURE, done=State.PAYING),
        State.PAYING: Ask(
            Place.IN_FLIGHT, "target", Verb.CREDIT, done=State.PAID, rejected=State.REFUNDING
        ),
        State.REFUNDING: Ask(Place.IN_FLIGHT, "source", Verb.REFUND, done=State.FREED),
        State.RELEASING: Ask(Place.HELD, "source", Verb.RELEASE, done=State.FREED),
        State.PAID: End(Place.TARGET),
        State.FREED: End(Place.SOURCE),
        State.NEVER: End(Place.SOURCE),
    },
    roles=frozenset({"judge", "fees"}),
)
EFFECTS = {
    "hold": (-5, 5),
    "capture": (0, -5),
    "release": (5, -5),
    "credit": (5, 0),
    "refund": (5, 0),
}
PARTIES = {
    "source": Party("ledger", "FUNDING", 1),
    "target": Party("ledger", "SHOP", 1),
    "fees": Party("ledger", "FEES", 1),
    "judge": Party("desk", "", 1),
}


def case(state: State, *answers: tuple[str, str, State, State]) -> AuditCase:
    """A transfer with the given history, and a ledger with the matching operations."""
    lane = None if HELD.is_end(state) else "ledger"
    row = AuditedRow(ID, 1, "held", state, lane, len(answers), PARTIES, 3, 5, GENESIS, keyed=True)
    history, operations = [], []
    for version, (verb, answer, asked, to) in enumerate(answers):
        history.append(HistoryRow(HistoryEntry(version, (asked, to), verb, answer), 0, GENESIS))
        if verb in EFFECTS:
            delta, held = EFFECTS[verb] if answer == "done" else (0, 0)
            account = Account(1, "SHOP" if verb == "credit" else "FUNDING", 3)
            operations.append(LedgerRow(ID, version, account, verb, 5, answer, delta, held, 0))
    return AuditCase(row, history, operations)


HOLD = ("hold", "done", State.HOLDING, State.DECIDING)
YES = ("check", "done", State.DECIDING, State.CAPTURING)
NO = ("check", "rejected", State.DECIDING, State.RELEASING)
CAPTURE = ("capture", "done", State.CAPTURING, State.PAYING)
CREDIT = ("credit", "done", State.PAYING, State.PAID)
NOT_CREDITED = ("credit", "rejected", State.PAYING, State.REFUNDING)
REFUND = ("refund", "done", State.REFUNDING, State.FREED)
PAID = case(State.PAID, HOLD, YES, CAPTURE, CREDIT)
RELEASE = ("release", "done", State.RELEASING, State.FREED)


@pytest.mark.parametrize(
    "sound",
    [
        case(State.HOLDING),
        case(State.DECIDING, HOLD),
        case(State.CAPTURING, HOLD, YES),
        case(State.PAYING, HOLD, YES, CAPTURE),
        PAID,
        case(State.FREED, HOLD, YES, CAPTURE, NOT_CREDITED, REFUND),
        case(State.FREED, HOLD, NO, RELEASE),
        case(State.NEVER, ("hold", "rejected", State.HOLDING, State.NEVER)),
    ],
)
def test_every_correct_history_of_a_hold_is_sound(sound: AuditCase) -> None:
    verdict = judge(sound, HELD, ledger_records(sound, "ledger"))
    assert verdict.problems == []
    captured = sound.row.state == State.PAYING
    assert verdict.in_flight == (5 if captured else 0)


def test_captured_money_that_never_reaches_the_target_is_missing() -> None:
    lost = PAID._replace(operations=PAID.operations[:-1])
    verdict = judge(lost, HELD, ledger_records(lost, "ledger"))
    assert verdict.in_flight == 5
    assert "system ledger has recorded nothing under version 3" in "".join(verdict.problems)


def charged(fee: int, *entries: tuple[str, int, str]) -> AuditCase:
    """PAID with a fee, credited by these entries: book, amount and result of each."""
    operations = list(PAID.operations[:-1])
    for number, (book, amount, result) in enumerate(entries):
        delta = amount if result == "done" else 0
        account = Account(1, book, 3)
        row = LedgerRow(ID, 3, account, "credit", amount, result, delta, 0, 0, number)
        operations.append(row)
    return PAID._replace(row=PAID.row._replace(fee=fee), operations=operations)


def test_a_credit_with_a_fee_is_sound_in_two_entries() -> None:
    sound = charged(2, ("SHOP", 3, "done"), ("FEES", 2, "done"))
    verdict = judge(sound, HELD, ledger_records(sound, "ledger"))
    assert (verdict.problems, verdict.in_flight) == ([], 0)


@pytest.mark.parametrize(
    "entries",
    [
        [("SHOP", 5, "done")],  # The fee went to the target.
        [("SHOP", 3, "done")],  # The fee went nowhere.
        [("SHOP", 4, "done"), ("FEES", 1, "done")],
        [("FEES", 3, "done"), ("SHOP", 2, "done")],
        [("SHOP", 3, "done"), ("FUNDING", 2, "done")],
        [("SHOP", 3, "done"), ("FEES", 2, "rejected")],
    ],
)
def test_a_fee_on_a_wrong_account_is_found(entries: list[tuple[str, int, str]]) -> None:
    odd = charged(2, *entries)
    assert judge(odd, HELD, ledger_records(odd, "ledger")).problems != []


def test_an_entry_for_a_fee_that_the_transfer_does_not_have_is_found() -> None:
    odd = charged(0, ("SHOP", 3, "done"), ("FEES", 2, "done"))
    [problem] = judge(odd, HELD, ledger_records(odd, "ledger")).problems
    assert "the ledger operation of version 3 does not match its transfer" in problem


@pytest.mark.parametrize(
    "account", [Account(1, "OTHER", 3), Account(2, "SHOP", 3), Account(1, "SHOP", 4)]
)
def test_money_credited_to_another_account_is_found(account: Account) -> None:
    elsewhere = PAID.operations[-1]._replace(account=account)
    odd = PAID._replace(operations=[*PAID.operations[:-1], elsewhere])
    [problem] = judge(odd, HELD, ledger_records(odd, "ledger")).problems
    assert "the ledger operation of version 3 does not match its transfer" in problem


def test_a_redirected_refund_may_credit_the_suspense_book() -> None:
    answers = (HOLD, YES, CAPTURE, NOT_CREDITED, REFUND)
    freed = case(State.FREED, *answers)
    parties = {**PARTIES, "suspense": Party("ledger", "SUSPENSE", 1)}
    credited = freed.operations[-1]._replace(account=Account(1, "SUSPENSE", 3), verb="credit")
    row = freed.row._replace(parties=parties)
    sound = AuditCase(row, freed.history, [*freed.operations[:-1], credited])
    assert judge(sound, HELD, ledger_records(sound, "ledger")).problems == []
    home = freed._replace(row=row)
    assert judge(home, HELD, ledger_records(home, "ledger")).problems == []
    odd = sound._replace(operations=[*freed.operations[:-1], credited._replace(verb="refund")])
    assert judge(odd, HELD, ledger_records(odd, "ledger")).problems != []


SEEN = TransferFacts(
    2, 3, 5, {"source": Party("core", "SPOT", 1), "target": Party("core", "MARGIN", 1)}
)


FITTING = wire.CoreEvent(
    position=9,
    transfer_id=ID,
    version=1,
    verb=wire.CoreVerb.CREDIT,
    book=wire.CoreBook.MARGIN,
    owner=1,
    asset_id=3,
    amount=5,
    undoes=0,
    outcome=wire.CoreOutcome.DONE,
    delta=5,
    balance=5,
)


@pytest.mark.parametrize(
    ("event", "fits"),
    [
        (FITTING, True),
        (FITTING._replace(verb=wire.CoreVerb.DEBIT, book=wire.CoreBook.SPOT), True),
        (FITTING._replace(verb=wire.CoreVerb.REFUND, book=wire.CoreBook.SPOT), True),
        (FITTING._replace(book=wire.CoreBook.FUTURE), False),  # Another book of the same owner.
        (FITTING._replace(book=wire.CoreBook.SPOT), False),  # The source must not be credited.
        (FITTING._replace(verb=wire.CoreVerb.DEBIT), False),
        (FITTING._replace(owner=2), False),
        (FITTING._replace(asset_id=4), False),
        (FITTING._replace(amount=6), False),
    ],
)
def test_a_core_operation_must_be_on_an_account_of_its_transfer(
    event: wire.CoreEvent, fits: bool
) -> None:
    assert core_fits(event, "core", SEEN) is fits


def test_a_hold_that_is_closed_twice_is_found() -> None:
    found = ledger_records(PAID, "ledger")
    found["ledger", 4] = SystemRecord("done", 0, moved=True, local=True)
    [problem] = judge(PAID, HELD, found).problems
    assert (
        "system ledger moved money under version 4, but the history contains no such answer"
        in problem
    )


def test_a_local_operation_ahead_of_its_answer_is_found() -> None:
    waiting = case(State.CAPTURING, HOLD, YES)
    found = ledger_records(waiting, "ledger")
    outside = SystemRecord("done", -5, moved=True)
    assert judge(waiting, HELD, {**found, ("ledger", 2): outside}).problems == []
    local = outside._replace(local=True)
    assert judge(waiting, HELD, {**found, ("ledger", 2): local}).problems != []


def test_operations_of_a_party_that_an_operator_replaced_are_accepted() -> None:
    freed = case(State.FREED, HOLD, NO, RELEASE)
    found = ledger_records(freed, "ledger")
    moved = {("core", 0): found.pop(("ledger", 0))._replace(local=False), **found}
    problem = "".join(judge(freed, HELD, moved).problems)
    assert "system ledger has recorded nothing under version 0" in problem
    answer = freed.history[2]
    entry = msgspec.structs.replace(answer.entry, actor="ann and bob")
    by_person = answer._replace(entry=entry)
    resolved = freed._replace(history=[*freed.history[:2], by_person])
    assert judge(resolved, HELD, moved).problems == []


ROW = case(State.PAID).row
BY_HISTORY = HistoryEntry(0, ("A", "B"), "credit", "done")
BY_PERSON = HistoryEntry(0, ("A", "B"), "credit", "done", actor="ann and bob")
ARRIVED = SystemRecord("done", 5, moved=True)


@pytest.mark.parametrize(
    ("entry", "answer", "found"),
    [
        (BY_HISTORY, Done({"position": "7"}), ARRIVED),
        (BY_HISTORY, Done({"position": "8"}), None),  # After the audited position.
        (BY_HISTORY, Done({"position": "7", "delta": "0"}), SystemRecord("done", 0, moved=False)),
        (BY_HISTORY, Rejected("NO", {"position": "7"}), SystemRecord("rejected", 0, moved=False)),
        (BY_HISTORY, None, None),
        (BY_HISTORY, Unknown("RETIRED"), ARRIVED),  # It was audited before it was retired.
        (BY_PERSON, None, ARRIVED),  # Answered by operators. The sums show whether it is true.
        (None, None, None),
        (None, Unknown("RETIRED"), None),
    ],
)
def test_the_record_of_a_core_under_a_key(
    entry: HistoryEntry | None, answer: Answer | None, found: SystemRecord | None
) -> None:
    assert ExpectedRecord(ROW, "core", 0, Verb.CREDIT, entry).by_answer(answer, 7) == found
