"""The fast path of the judge and of replay gives the same results as the general rules."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.trading_core.scenes import ANN, BOB, BookDriver, credit, debit, digest, refund
from tidegate.core.money import MAX_AMOUNT
from tidegate.core.wire import (
    ANSWER,
    OPERATION,
    RECORD,
    VOID,
    AccountStatus,
    CoreOperation,
    account,
    pack_operations,
    rows,
)
from tidegate.trading_core.book import Book, BookDraft, OperationFields, group_totals
from tidegate.trading_core.judge import SMALL_BATCH, _judge_operation, judge

ELSEWHERE, NOWHERE = account(2, 6, 1001), account(9, 5, 1001)
AMOUNTS = (0, 1, 2, 2**63, 2**64 - 1, 2**64, 2**100, MAX_AMOUNT, MAX_AMOUNT + 1)

operations = st.builds(
    CoreOperation,
    st.integers(1, 8).map(lambda n: n.to_bytes(16)),
    st.integers(0, 3),
    st.integers(0, 4),
    st.sampled_from([ANN, ANN, BOB, ELSEWHERE, NOWHERE]),
    st.sampled_from(AMOUNTS),
    st.sampled_from([0, 0, 0, 1]),
    st.sampled_from([0, 0, 1, VOID]),
)
plain = st.builds(
    CoreOperation,
    st.integers(1, 40).map(lambda n: n.to_bytes(16)),
    st.just(0),
    st.integers(1, 2),
    st.sampled_from([ANN, BOB, ELSEWHERE]),
    st.sampled_from(AMOUNTS),
    st.just(0),
    st.sampled_from([False]),
)
statuses = st.tuples(st.sampled_from([ANN, BOB]), st.sampled_from([1, 2, 3]))
floors = st.integers(1, 6)
# A batch is a list of requests, as the core takes them into one draft.
requests = st.lists(operations | plain, max_size=12) | statuses | floors
batches = st.lists(st.lists(requests, min_size=1, max_size=3), max_size=8)


def judge_row_by_row(draft: BookDraft, packed: bytes) -> tuple[bytes, bytes]:
    """Judge every operation by the general rules."""
    records: list[bytes] = []
    answers = [
        ANSWER.pack(*_judge_operation(draft, row, records)) for row in rows(OPERATION, packed)
    ]
    return b"".join(answers), b"".join(records)


def replay_row_by_row(draft: BookDraft, records: bytes) -> None:
    """Replay every record by `write_operation`, with its delta read as signed bytes."""
    for key, verb, _, undoes, party, raw_amount, outcome, change, after in rows(RECORD, records):
        delta, balance = int.from_bytes(change, signed=True), int.from_bytes(after)
        assert draft.balance(party) + delta == balance
        operation = (verb, undoes, party, int.from_bytes(raw_amount))
        draft.write_operation(key, operation, outcome, delta, balance)


@pytest.mark.parametrize("dense", [False, True])
@given(history=batches)
@example(history=[[[credit(1, 2**100), debit(2, 2**64), debit(3, 1), credit(3, 1)]]])
@example(history=[[[debit(1, 5)], [credit(2, 9)]], [[credit(3, 9)], (ANN, 2), [debit(4, 1)]]])
@example(history=[[[debit(1, 5)]], [[credit(2, 9)]], [[debit(3, 4)]]])
@example(history=[[[credit(1, 9), debit(2, 4)]], [[refund(2, 4)]], [[refund(2, 4, version=2)]]])
@example(
    history=[[[credit(5, 9)]], [4, [credit(3, 9), credit(5, 9), debit(6, 2)]], [[debit(6, 2)]]]
)
def test_fast_path_and_general_rules_give_the_same_results(
    history: list[list[object]], dense: bool
) -> None:
    """Also with accounts in the list of their group, and with two moves as a run."""
    with pytest.MonkeyPatch.context() as patch:
        if dense:
            patch.setattr("tidegate.trading_core.accounts.MIN_SPARSE", 1)
            patch.setattr("tidegate.trading_core.accounts.MAX_ENTRIES_PER_ACCOUNT", 10_000)
            patch.setattr("tidegate.trading_core.judge.SMALL_BATCH", 0)
            patch.setattr("tidegate.trading_core.operation_memory.MIN_RUN", 2)
            patch.setattr("tidegate.trading_core.operation_memory.MAX_RUN", 3)
        compare_fast_path_and_rows(history)


def compare_fast_path_and_rows(history: list[list[object]]) -> None:
    fast, by_rows, fast_replay, row_replay = Book(), Book(), Book(), Book()
    for batch in history:
        drafts = [BookDraft(book) for book in (fast, by_rows, row_replay)]
        for request in batch:
            if isinstance(request, list):
                packed = pack_operations(request)
                answers, records = judge(drafts[0], packed)
                assert (answers, records) == judge_row_by_row(drafts[1], packed)
                fast_replay.replay(records)
                replay_row_by_row(drafts[2], records)
                continue
            replayed = BookDraft(fast_replay)
            if isinstance(request, tuple):
                for draft in (*drafts, replayed):
                    draft.write_status(*request)
            else:
                assert isinstance(request, int)
                for draft in (*drafts, replayed):
                    draft.write_floor(request)
            fast_replay.apply(replayed)
        for draft in drafts:
            draft.book.apply(draft)
        fast_replay.recount()
        assert digest(fast) == digest(by_rows) == digest(fast_replay) == digest(row_replay)
        assert dict(group_totals(fast)) == fast.totals == fast_replay.totals


class LookupRecordingDraft(BookDraft):
    """A draft that records whether a key was looked up, as only the general rules do."""

    was_looked_up = False

    def find(self, key: bytes) -> int | None:
        self.was_looked_up = True
        return super().find(key)


@pytest.mark.parametrize(
    ("operation", "is_plain"),
    [
        (credit(3, 1), True),
        (debit(4, 1), True),
        (credit(3, 2**64 - 1), True),
        (credit(3, 2**100), True),
        (debit(5, 100), True),
        (debit(5, 0), True),
        (debit(6, 1, BOB), True),
        (debit(5, MAX_AMOUNT + 1), True),
        (credit(6, 1, BOB), False),
        (credit(7, 1, ELSEWHERE), False),
        (credit(1, 10), False),
    ],
)
def test_only_a_plain_move_takes_the_fast_path(operation: CoreOperation, is_plain: bool) -> None:
    """Otherwise the comparison above would compare the general rules with themselves."""
    driver = BookDriver()
    driver.ask(credit(1, 10), credit(2, 10, BOB))
    driver.set_status(BOB, AccountStatus.FROZEN)
    draft = LookupRecordingDraft(driver.book)
    others = [credit(100 + n, 1) for n in range(SMALL_BATCH)]
    judge(draft, pack_operations([*others, operation]))
    assert draft.was_looked_up != is_plain


@pytest.mark.parametrize(
    ("operation", "is_plain"),
    [
        (credit(3, 1), True),
        (debit(4, 1), True),
        (debit(4, 10), True),
        (credit(3, 2**64), False),
        (debit(5, 100), True),
        (debit(5, 0), True),
        (debit(7, 1, ELSEWHERE), True),
        (credit(7, 1, ELSEWHERE), True),
        (refund(2, 1), False),
    ],
)
def test_only_a_plain_move_is_replayed_by_the_fast_path(
    operation: CoreOperation, is_plain: bool
) -> None:
    driver, again = BookDriver(), WriteCountingBook()
    driver.ask(credit(1, 11), debit(2, 1))
    driver.ask(operation)
    again.replay(driver.records[0])
    again.writes = 0
    again.replay(driver.records[1])
    again.recount()
    assert again.writes == (0 if is_plain else 1)
    assert digest(again) == digest(driver.book)


class WriteCountingBook(Book):
    """A book that counts the operations written by the general rules."""

    writes = 0

    def write_operation(
        self, key: bytes, operation: OperationFields, outcome: int, delta: int, balance: int
    ) -> None:
        self.writes += 1
        super().write_operation(key, operation, outcome, delta, balance)
