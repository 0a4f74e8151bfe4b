"""Ids begin with a time, and new ids are above the floor whatever the clock shows."""

import pickle
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.ids import NO_FLOOR, Horizon, first_id, id_time_us, time_ms, uuid_of

TIMES = st.integers(0, 2**47)


@given(TIMES, TIMES, st.integers(0, 2**80 - 1))
def test_an_id_of_the_time_for_new_ids_is_above_the_floor(
    now_ms: int, floor_ms: int, low_bits: int
) -> None:
    floor = UUID(int=first_id(floor_ms).int | low_bits)
    new_id = first_id(id_time_us(now_ms * 1000, floor) // 1000)
    assert new_id > floor
    assert time_ms(new_id) == max(now_ms, floor_ms + 1)


def test_a_negative_time_is_taken_as_zero() -> None:
    assert first_id(-5) == NO_FLOOR
    assert id_time_us(7_000, NO_FLOOR) == 7_000


def test_the_highest_floor_is_the_horizon_before_now_plus_the_skew() -> None:
    assert time_ms(Horizon(100.0, 10.0).latest(1_000.0)) == 910_000


@pytest.mark.parametrize("number", [0, 1, 0x018F << 112 | 7, 2**128 - 1])
def test_an_id_from_a_number_equals_one_from_the_constructor(number: int) -> None:
    fast, usual = uuid_of(number), UUID(int=number)
    assert fast == usual
    assert hash(fast) == hash(usual)
    assert (str(fast), fast.bytes, fast.is_safe) == (str(usual), usual.bytes, usual.is_safe)
    assert pickle.loads(pickle.dumps(fast)) == usual
