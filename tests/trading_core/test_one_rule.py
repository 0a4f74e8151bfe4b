"""The short way through the judge, and through replay, gives what the long way gives."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.trading_core.scenes import ANN, BOB, Desk, credit, debit, digest, refund
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
from tidegate.trading_core.book import AskedOperation, Book, BookDraft, group_totals
from tidegate.trading_core.judge import FEW, _judge, judge

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


def the_long_way(draft: BookDraft, asked: bytes) -> tuple[bytes, bytes]:
    """Every operation by the judge of any operation."""
    records: list[bytes] = []
    answers = [ANSWER.pack(*_judge(draft, row, records)) for row in rows(OPERATION, asked)]
    return b"".join(answers), b"".join(records)


def replayed_the_long_way(draft: BookDraft, records: bytes) -> None:
    """Every record by `note`, with its delta read as the signed bytes that it is."""
    for raw, verb, _, undoes, party, size, outcome, change, after in rows(RECORD, records):
        delta, balance = int.from_bytes(change, signed=True), int.from_bytes(after)
        assert draft.balance(party) + delta == balance
        asked = (verb, undoes, party, int.from_bytes(size))
        draft.note(raw, asked, outcome, delta, balance)


@pytest.mark.parametrize("listed", [False, True])
@given(life=batches)
@example(life=[[[credit(1, 2**100), debit(2, 2**64), debit(3, 1), credit(3, 1)]]])
@example(life=[[[debit(1, 5)], [credit(2, 9)]], [[credit(3, 9)], (ANN, 2), [debit(4, 1)]]])
@example(life=[[[debit(1, 5)]], [[credit(2, 9)]], [[debit(3, 4)]]])
@example(life=[[[credit(1, 9), debit(2, 4)]], [[refund(2, 4)]], [[refund(2, 4, version=2)]]])
@example(life=[[[credit(5, 9)]], [4, [credit(3, 9), credit(5, 9), debit(6, 2)]], [[debit(6, 2)]]])
def test_both_ways_judge_and_replay_the_same(life: list[list[object]], listed: bool) -> None:
    """Also where accounts stand in the list of their group, and two moves are many."""
    with pytest.MonkeyPatch.context() as patch:
        if listed:
            patch.setattr("tidegate.trading_core.accounts.FEWEST", 1)
            patch.setattr("tidegate.trading_core.accounts.SPARSEST", 10_000)
            patch.setattr("tidegate.trading_core.judge.FEW", 0)
            patch.setattr("tidegate.trading_core.operation_memory.FEWEST_TOGETHER", 2)
            patch.setattr("tidegate.trading_core.operation_memory.MOST_TOGETHER", 3)
        judge_and_replay_both_ways(life)


def judge_and_replay_both_ways(life: list[list[object]]) -> None:
    short, long, again, again_long = Book(), Book(), Book(), Book()
    for batch in life:
        drafts = [BookDraft(each) for each in (short, long, again_long)]
        for request in batch:
            if isinstance(request, list):
                asked = pack_operations(request)
                answers, records = judge(drafts[0], asked)
                assert (answers, records) == the_long_way(drafts[1], asked)
                again.replay(records)
                replayed_the_long_way(drafts[2], records)
                continue
            replayed = BookDraft(again)
            if isinstance(request, tuple):
                for draft in (*drafts, replayed):
                    draft.note_status(*request)
            else:
                assert isinstance(request, int)
                for draft in (*drafts, replayed):
                    draft.note_floor(request)
            again.apply(replayed)
        for draft in drafts:
            draft.book.apply(draft)
        again.recount()
        assert digest(short) == digest(long) == digest(again) == digest(again_long)
        assert dict(group_totals(short)) == short.totals == again.totals


class Watched(BookDraft):
    """A draft that sees whether it is asked as only the long way asks."""

    asked = False

    def find(self, key: bytes) -> int | None:
        self.asked = True
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
def test_only_a_plain_move_goes_the_short_way(operation: CoreOperation, is_plain: bool) -> None:
    """Else the comparison above would compare the long way with itself."""
    desk = Desk()
    desk.ask(credit(1, 10), credit(2, 10, BOB))
    desk.admit(BOB, AccountStatus.FROZEN)
    draft = Watched(desk.book)
    others = [credit(100 + n, 1) for n in range(FEW)]
    judge(draft, pack_operations([*others, operation]))
    assert draft.asked != is_plain


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
def test_only_a_plain_move_is_replayed_the_short_way(
    operation: CoreOperation, is_plain: bool
) -> None:
    desk, again = Desk(), Noted()
    desk.ask(credit(1, 11), debit(2, 1))
    desk.ask(operation)
    again.replay(desk.records[0])
    again.noted = 0
    again.replay(desk.records[1])
    again.recount()
    assert again.noted == (0 if is_plain else 1)
    assert digest(again) == digest(desk.book)


class Noted(Book):
    """A book that counts what is written into it the long way."""

    noted = 0

    def note(
        self, key: bytes, asked: AskedOperation, outcome: int, delta: int, balance: int
    ) -> None:
        self.noted += 1
        super().note(key, asked, outcome, delta, balance)
