"""What is written and read by columns is what one by one is written and read."""

import pytest

from tests.trading_core.scenes import tid
from tests.trading_core.test_many_at_once import DONE, FEW_OWNERS, SHORT, desk_with, many
from tidegate.core.wire import ANSWER, OPERATION, RECORD, CoreVerb, rows
from tidegate.trading_core.book import Book, LogInconsistent
from tidegate.trading_core.move_columns import pack_answers


@pytest.mark.parametrize("before", [0, 1, 65_534, 65_535, 65_536, 2**32 - 5, 2**48 - 300])
@pytest.mark.parametrize("count", [1, 2, 64, 200])
def test_answers_are_the_same_as_packed_one_by_one(before: int, count: int) -> None:
    positions = range(before + 1, before + count + 1)
    packed = pack_answers(before, count, b"")
    assert packed == b"".join(ANSWER.pack(DONE, position) for position in positions)
    outcomes = bytes([DONE, SHORT] * count)[:count]
    told = zip(outcomes, positions, strict=True)
    assert pack_answers(before, count, outcomes) == b"".join(ANSWER.pack(*each) for each in told)


def test_answers_go_on_behind_65536_and_more() -> None:
    packed = pack_answers(60_000, 150_000, b"")
    assert list(rows(ANSWER, packed)) == [(DONE, 60_001 + n) for n in range(150_000)]


@pytest.mark.parametrize("byte", [16, 9, 1], ids=["upper half", "lowest of it", "lower half"])
@pytest.mark.parametrize("at", [0, 63, 64, 130])
def test_replay_refuses_a_record_of_a_large_batch_that_does_not_fit(at: int, byte: int) -> None:
    desk = desk_with(FEW_OWNERS)
    desk.ask(*many(131))
    records = bytearray(desk.records[1])
    records[(at + 1) * RECORD.size - byte] ^= 1
    again = Book()
    again.replay(desk.records[0])
    with pytest.raises(LogInconsistent, match=f"record {29 + at + 1} does not fit"):
        again.replay(bytes(records))


def test_replay_takes_the_outcome_from_the_log_and_judges_nothing() -> None:
    desk = desk_with(FEW_OWNERS)
    desk.ask(*many(100))
    records = bytearray(desk.records[1])
    records[50 * RECORD.size + OPERATION.size] = SHORT
    again = Book()
    again.replay(desk.records[0])
    again.replay(bytes(records))
    assert again.answer(tid(10_050) + bytes(4)) == (SHORT, 80)
    assert again.answer(tid(10_051) + bytes(4)) == (DONE, 81)


def test_a_refusal_that_moves_money_does_not_fit() -> None:
    """Whether the balance or only the change says so."""
    desk = desk_with(FEW_OWNERS)
    desk.ask(*(o._replace(verb=CoreVerb.DEBIT, amount=10**9) for o in many(100)))
    for at in (RECORD.size - 1, RECORD.size - 17):
        records = bytearray(desk.records[1])
        records[50 * RECORD.size + at] ^= 1
        again = Book()
        again.replay(desk.records[0])
        with pytest.raises(LogInconsistent, match="record 80 does not fit"):
            again.replay(bytes(records))
