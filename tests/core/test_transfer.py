"""Questions, the first state of a transfer, and the hash chain of its history."""

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
    entry_hash,
    lane_of,
    question_of,
    step_of,
)
from tidegate.flows.deposit import DEPOSIT
from tidegate.flows.internal_transfer import INTERNAL_TRANSFER


def test_a_repeated_question_is_the_same() -> None:
    for flow, state in ASKING:
        once = resting(flow, state, version=4)
        again = once.replace(attempts=9, retries=12, paged=True, error="timeout", waited_s=99.0)
        assert question_of(flow, once) == question_of(flow, again)


def test_a_debit_asks_the_source_under_the_key_of_its_version() -> None:
    transfer = resting(INTERNAL_TRANSFER, "SOURCE_PENDING", detail={"memo": "m"})
    party = Party("source system", "BOOK", 7)
    assert question_of(INTERNAL_TRANSFER, transfer) == Question(
        ID, 0, Verb.DEBIT, party, 1, 1_000_000, detail={"memo": "m"}
    )


def test_a_refund_names_the_debit_that_it_undoes() -> None:
    transfer = resting(INTERNAL_TRANSFER, "COMPENSATING", version=2, undoes=0)
    question = question_of(INTERNAL_TRANSFER, transfer)
    assert (question.version, question.undoes, question.expect_done) == (2, 0, True)


def test_an_undo_without_a_done_in_our_history_does_not_expect_one() -> None:
    transfer = resting(INTERNAL_TRANSFER, "COMPENSATING", version=2)
    question = question_of(INTERNAL_TRANSFER, transfer)
    assert (question.undoes, question.expect_done) == (None, False)


def test_a_question_opens_an_account_only_if_its_state_does() -> None:
    assert question_of(DEPOSIT, resting(DEPOSIT, "CREDITING")).opens
    assert not question_of(INTERNAL_TRANSFER, resting(INTERNAL_TRANSFER, "TARGET_PENDING")).opens


@pytest.mark.parametrize(("flow", "state"), ENDED)
def test_an_end_asks_nothing(flow: Flow, state: str) -> None:
    assert lane_of(flow, parties_of(flow), state) is None
    with pytest.raises(AssertionError, match="nothing is asked in"):
        question_of(flow, resting(flow, state))


def test_a_transfer_is_created_in_a_state_that_asks() -> None:
    for flow in ALL_FLOWS:
        request = Request(7, flow.name, parties_of(flow), 1, 5)
        created = transfer_of(request, flow, ID)
        ask = flow.ask(created.state)
        assert ask is not None
        assert created.lane == created.parties[ask.role].system
        assert created.version == 0
        assert type(created.state) is str


def test_two_moves_of_one_transaction_join_with_the_more_urgent_alarm() -> None:
    a, b, c = (resting(INTERNAL_TRANSFER, "SOURCE_PENDING", version=v) for v in range(3))
    loud = Move(a, b, (HistoryEntry(0, ("A", "B"), "debit", "done"),), alarm=Alarm.HALT)
    quiet = Move(b, c, (HistoryEntry(1, ("B", "C"), "credit", "done"),), delay_s=3.0, rests=True)
    both = step_of(loud).then(step_of(quiet))
    assert (both.before, both.after) == (a.kind, c.kind)
    assert [form.version for form in both.entry_forms] == [0, 1]
    assert (both.alarm, both.delay_s, both.rests) == (Alarm.HALT, 3.0, True)


# The history.


@dataclass(frozen=True)
class HashedRow:
    """One row of a history, with all fields that its hash covers."""

    entry: HistoryEntry
    at_us: int = 1_700_000_000_000_000
    id: UUID = ID
    flow: str = "internal_transfer"


ROWS = (
    HashedRow(HistoryEntry(0, ("INIT", "A", "B"), "debit", "done", "", {"balance": "5"}, "engine")),
    HashedRow(
        HistoryEntry(1, ("B", "C"), "credit", "rejected", "ACCOUNT_FROZEN", {"a": "1", "b": "2"})
    ),
    HashedRow(HistoryEntry(2, ("C", "D"), "refund", "done", "", {}, "alice")),
)


def head(rows: Sequence[HashedRow]) -> bytes:
    hashed = GENESIS
    for row in rows:
        hashed = entry_hash(hashed, row.id, row.flow, row.entry, row.at_us)
    return hashed


def entry_with(**fields: object) -> Callable[[HashedRow], HashedRow]:
    return lambda row: HashedRow(replace(row.entry, **fields), row.at_us, row.id, row.flow)


CHANGES: dict[str, Callable[[HashedRow], HashedRow]] = {
    "version": entry_with(version=9),
    "path": entry_with(path=("X", "Y")),
    "a shorter path": lambda row: entry_with(path=row.entry.path[1:])(row),
    "verb": entry_with(verb="hold"),
    "answer": entry_with(answer="maybe"),
    "reason": entry_with(reason="OTHER"),
    "evidence": entry_with(evidence={"balance": "6"}),
    "more evidence": lambda row: entry_with(evidence={**row.entry.evidence, "z": "1"})(row),
    "actor": entry_with(actor="mallory"),
    "time": lambda row: HashedRow(row.entry, row.at_us + 1, row.id, row.flow),
    "transfer": lambda row: HashedRow(row.entry, row.at_us, UUID(int=1), row.flow),
    "flow": lambda row: HashedRow(row.entry, row.at_us, row.id, "deposit"),
}


def test_every_field_of_an_entry_is_changed_by_a_test() -> None:
    assert set(HistoryEntry.__struct_fields__) <= set(CHANGES)


@pytest.mark.parametrize("changed", CHANGES)
@pytest.mark.parametrize("index", range(len(ROWS)))
def test_changing_any_field_of_any_row_changes_the_head(changed: str, index: int) -> None:
    forged = [CHANGES[changed](row) if i == index else row for i, row in enumerate(ROWS)]
    assert forged != list(ROWS)
    assert head(forged) != head(ROWS)


def test_dropping_or_reordering_rows_changes_the_head() -> None:
    shortened = [part for n in range(len(ROWS)) for part in combinations(ROWS, n)]
    swapped = [(ROWS[1], ROWS[0], ROWS[2]), (ROWS[0], ROWS[2], ROWS[1]), ROWS[::-1]]
    heads = [head(rows) for rows in [*shortened, *swapped, (*ROWS, ROWS[2]), ROWS]]
    assert len(set(heads)) == len(heads)


def test_moving_text_from_one_field_to_the_next_changes_the_hash() -> None:
    first = HashedRow(HistoryEntry(0, ("A", "B"), "debit", "rejected", "x", {}, "y"))
    second = HashedRow(HistoryEntry(0, ("A", "B"), "debit", "rejected", "xy", {}, ""))
    joined = HashedRow(HistoryEntry(0, ("AB",), "debit", "rejected", "x", {}, "y"))
    assert len({head([first]), head([second]), head([joined])}) == 3


def test_the_order_of_the_evidence_does_not_matter() -> None:
    first = HashedRow(HistoryEntry(0, ("A", "B"), "debit", "done", evidence={"a": "1", "b": "2"}))
    second = HashedRow(HistoryEntry(0, ("A", "B"), "debit", "done", evidence={"b": "2", "a": "1"}))
    assert head([first]) == head([second])


def test_the_first_row_is_chained_to_a_fixed_hash() -> None:
    assert head([]) == GENESIS == bytes(32)
    assert len(head(ROWS[:1])) == 32
