"""What is asked, where a transfer is born, and a history that vouches for itself."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from uuid import UUID

import pytest
from msgspec.structs import replace

from tests.core.samples import ALL_FLOWS, ASKING, ENDED, ID, parties_of, resting
from tidegate.core.answers import Alarm
from tidegate.core.flow import Flow, Verb
from tidegate.core.kind import GENESIS, Party
from tidegate.core.request import Request, transfer_of
from tidegate.core.transfer import (
    HistoryEntry,
    Move,
    Question,
    chained,
    lane_of,
    question_of,
    step_of,
)
from tidegate.flows.deposit import DEPOSIT
from tidegate.flows.internal_transfer import INTERNAL_TRANSFER


def test_the_question_is_the_same_however_often_it_is_put() -> None:
    for flow, state in ASKING:
        once = resting(flow, state, version=4)
        again = once.but(attempts=9, retries=12, paged=True, error="timeout", waited_s=99.0)
        assert question_of(flow, once) == question_of(flow, again)


def test_a_debit_is_asked_of_the_source_under_the_key_of_its_version() -> None:
    transfer = resting(INTERNAL_TRANSFER, "SOURCE_PENDING", detail={"memo": "m"})
    party = Party("source system", "BOOK", 7)
    assert question_of(INTERNAL_TRANSFER, transfer) == Question(
        ID, 0, Verb.DEBIT, party, 1, 1_000_000, detail={"memo": "m"}
    )


def test_a_refund_names_the_debit_that_is_done() -> None:
    transfer = resting(INTERNAL_TRANSFER, "COMPENSATING", version=2, undoes=0)
    question = question_of(INTERNAL_TRANSFER, transfer)
    assert (question.version, question.undoes, question.expect_done) == (2, 0, True)


def test_an_undo_of_what_our_history_does_not_hold_says_so() -> None:
    transfer = resting(INTERNAL_TRANSFER, "COMPENSATING", version=2)
    question = question_of(INTERNAL_TRANSFER, transfer)
    assert (question.undoes, question.expect_done) == (None, False)


def test_only_a_row_that_opens_accounts_asks_for_one_to_be_opened() -> None:
    assert question_of(DEPOSIT, resting(DEPOSIT, "CREDITING")).opens
    assert not question_of(INTERNAL_TRANSFER, resting(INTERNAL_TRANSFER, "TARGET_PENDING")).opens


@pytest.mark.parametrize(("flow", "state"), ENDED)
def test_an_end_asks_nothing(flow: Flow, state: str) -> None:
    assert lane_of(flow, parties_of(flow), state) is None
    with pytest.raises(AssertionError, match="nothing is asked in"):
        question_of(flow, resting(flow, state))


def test_a_transfer_is_born_where_something_is_asked() -> None:
    for flow in ALL_FLOWS:
        request = Request(7, flow.name, parties_of(flow), 1, 5)
        created = transfer_of(request, flow, ID)
        ask = flow.ask(created.state)
        assert ask is not None
        assert created.lane == created.parties[ask.role].system
        assert created.version == 0
        assert type(created.state) is str


def test_two_moves_of_one_transaction_are_one_with_the_louder_alarm() -> None:
    a, b, c = (resting(INTERNAL_TRANSFER, "SOURCE_PENDING", version=v) for v in range(3))
    loud = Move(a, b, (HistoryEntry(0, ("A", "B"), "debit", "done"),), alarm=Alarm.HALT)
    quiet = Move(b, c, (HistoryEntry(1, ("B", "C"), "credit", "done"),), delay_s=3.0, rests=True)
    both = step_of(loud).then(step_of(quiet))
    assert (both.before, both.after) == (a.kind, c.kind)
    assert [line.version for line in both.lines] == [0, 1]
    assert (both.alarm, both.delay_s, both.rests) == (Alarm.HALT, 3.0, True)


# The history.


@dataclass(frozen=True)
class Line:
    """One row of a history, with all that its hash vouches for."""

    entry: HistoryEntry
    at_us: int = 1_700_000_000_000_000
    id: UUID = ID
    flow: str = "internal_transfer"


LINES = (
    Line(HistoryEntry(0, ("INIT", "A", "B"), "debit", "done", "", {"balance": "5"}, "engine")),
    Line(HistoryEntry(1, ("B", "C"), "credit", "rejected", "ACCOUNT_FROZEN", {"a": "1", "b": "2"})),
    Line(HistoryEntry(2, ("C", "D"), "refund", "done", "", {}, "alice")),
)


def head(lines: Sequence[Line]) -> bytes:
    hashed = GENESIS
    for line in lines:
        hashed = chained(hashed, line.id, line.flow, line.entry, line.at_us)
    return hashed


def entry_with(**fields: object) -> Callable[[Line], Line]:
    return lambda line: Line(replace(line.entry, **fields), line.at_us, line.id, line.flow)


CHANGES: dict[str, Callable[[Line], Line]] = {
    "version": entry_with(version=9),
    "path": entry_with(path=("X", "Y")),
    "a shorter path": lambda line: entry_with(path=line.entry.path[1:])(line),
    "verb": entry_with(verb="hold"),
    "answer": entry_with(answer="maybe"),
    "reason": entry_with(reason="OTHER"),
    "evidence": entry_with(evidence={"balance": "6"}),
    "more evidence": lambda line: entry_with(evidence={**line.entry.evidence, "z": "1"})(line),
    "actor": entry_with(actor="mallory"),
    "time": lambda line: Line(line.entry, line.at_us + 1, line.id, line.flow),
    "transfer": lambda line: Line(line.entry, line.at_us, UUID(int=1), line.flow),
    "flow": lambda line: Line(line.entry, line.at_us, line.id, "deposit"),
}


def test_every_field_of_an_entry_is_among_the_changes() -> None:
    assert set(HistoryEntry.__struct_fields__) <= set(CHANGES)


@pytest.mark.parametrize("changed", CHANGES)
@pytest.mark.parametrize("at", range(len(LINES)))
def test_changing_any_field_of_any_row_changes_the_head(changed: str, at: int) -> None:
    forged = [CHANGES[changed](line) if i == at else line for i, line in enumerate(LINES)]
    assert forged != list(LINES)
    assert head(forged) != head(LINES)


def test_dropping_or_reordering_rows_changes_the_head() -> None:
    shortened = [part for n in range(len(LINES)) for part in combinations(LINES, n)]
    swapped = [(LINES[1], LINES[0], LINES[2]), (LINES[0], LINES[2], LINES[1]), LINES[::-1]]
    heads = [head(lines) for lines in [*shortened, *swapped, (*LINES, LINES[2]), LINES]]
    assert len(set(heads)) == len(heads)


def test_text_cannot_wander_from_one_field_into_the_next() -> None:
    one = Line(HistoryEntry(0, ("A", "B"), "debit", "rejected", "x", {}, "y"))
    other = Line(HistoryEntry(0, ("A", "B"), "debit", "rejected", "xy", {}, ""))
    joined = Line(HistoryEntry(0, ("AB",), "debit", "rejected", "x", {}, "y"))
    assert len({head([one]), head([other]), head([joined])}) == 3


def test_the_order_in_which_evidence_was_given_does_not_matter() -> None:
    one = Line(HistoryEntry(0, ("A", "B"), "debit", "done", evidence={"a": "1", "b": "2"}))
    other = Line(HistoryEntry(0, ("A", "B"), "debit", "done", evidence={"b": "2", "a": "1"}))
    assert head([one]) == head([other])


def test_the_first_row_is_chained_to_a_fixed_beginning() -> None:
    assert head([]) == GENESIS == bytes(32)
    assert len(head(LINES[:1])) == 32
