"""Reading and packing by columns gives the same as doing it row by row."""

import pytest

from tests.trading_core.scenes import tid
from tests.trading_core.test_many_at_once import DONE, FEW_OWNERS, SHORT, credits_of, driver_with
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
    answers = zip(outcomes, positions, strict=True)
    assert pack_answers(before, count, outcomes) == b"".join(ANSWER.pack(*a) for a in answers)


def test_answers_are_right_across_multiples_of_65536() -> None:
    packed = pack_answers(60_000, 150_000, b"")
    assert list(rows(ANSWER, packed)) == [(DONE, 60_001 + n) for n in range(150_000)]


@pytest.mark.parametrize(
    "byte", [16, 9, 1], ids=["upper half", "low byte of upper half", "lower half"]
)
@pytest.mark.parametrize("index", [0, 63, 64, 130])
def test_replay_refuses_a_record_of_a_large_batch_that_does_not_fit(index: int, byte: int) -> None:
    driver = driver_with(FEW_OWNERS)
    driver.ask(*credits_of(131))
    records = bytearray(driver.records[1])
    records[(index + 1) * RECORD.size - byte] ^= 1
    again = Book()
    again.replay(driver.records[0])
    with pytest.raises(LogInconsistent, match=f"record {29 + index + 1} does not fit"):
        again.replay(bytes(records))


def test_replay_takes_the_outcome_from_the_log_and_judges_nothing() -> None:
    driver = driver_with(FEW_OWNERS)
    driver.ask(*credits_of(100))
    records = bytearray(driver.records[1])
    records[50 * RECORD.size + OPERATION.size] = SHORT
    again = Book()
    again.replay(driver.records[0])
    again.replay(bytes(records))
    assert again.answer(tid(10_050) + bytes(4)) == (SHORT, 80)
    assert again.answer(tid(10_051) + bytes(4)) == (DONE, 81)


def test_a_refusal_that_moves_money_does_not_fit() -> None:
    """Whether the balance is changed too, or only the delta."""
    driver = driver_with(FEW_OWNERS)
    driver.ask(*(o._replace(verb=CoreVerb.DEBIT, amount=10**9) for o in credits_of(100)))
    for offset in (RECORD.size - 1, RECORD.size - 17):
        records = bytearray(driver.records[1])
        records[50 * RECORD.size + offset] ^= 1
        again = Book()
        again.replay(driver.records[0])
        with pytest.raises(LogInconsistent, match="record 80 does not fit"):
            again.replay(bytes(records))
