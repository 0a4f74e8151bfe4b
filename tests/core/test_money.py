"""Amounts: which texts are parsed, which are refused, and that parsing is exact."""

import sys
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.money import (
    MAX_AMOUNT,
    MAX_AMOUNT_CHARS,
    MAX_DECIMALS,
    MAX_WHOLE_UNITS,
    format_amount,
    parse_amount,
)
from tidegate.core.refusals import Refusal

NOT_AMOUNTS = [
    "",
    " ",
    "0",
    "0.0",
    "0.000000",
    "-0",
    "-1",
    "-0.5",
    "+1",
    "+0",
    "\u22121",
    "\u20131",
    "1-",
    "--1",
    "(1)",
    "1_000",
    "1,000",
    "1,5",
    "1 000",
    "1\u00a0000",
    "1'000",
    "1e3",
    "1E3",
    "1e400",
    "1e-3",
    "1.5e1",
    "NaN",
    "nan",
    "sNaN",
    "Infinity",
    "-inf",
    "٣",
    "١٢٣",
    "\uff11\uff12",
    "१२",
    "1٢",
    "²",
    "1²",
    "½",
    "Ⅷ",
    "一",
    "0001",
    "00",
    "01.5",
    " 1 ",
    "1 ",
    " 1",
    "1\n",
    "\n1",
    "1\t",
    "1\r\n",
    "1\x00",
    "\ufeff1",
    "1\u200b",
    "1.",
    ".5",
    ".",
    "1..5",
    "1.2.3",
    "1.-5",
    "1.+5",
    "1.5_0",
    "1.\uff15",
    "1.5\n",
    "0x10",
    "0b1",
    "0o7",
    "1L",
    "1.0f",
    "1/2",
    "1%",
    "$1",
    "€1",
    "1 USDT",
    "one",
    "null",
    "None",
    "true",
    "{}",
    '"1"',
    "1;DROP TABLE transfers",
    "1" * 65,
    "1" * 5000,
    "0." + "0" * 63,
    str(2**256),
]


@pytest.mark.parametrize("text", NOT_AMOUNTS, ids=ascii)
def test_text_that_is_not_a_plain_positive_decimal_is_refused(text: str) -> None:
    assert parse_amount(text, 18) is Refusal.INVALID_AMOUNT


@pytest.mark.parametrize(
    ("text", "decimals", "amount"),
    [
        ("1", 0, 1),
        ("1", 6, 1_000_000),
        ("1.0", 6, 1_000_000),
        ("1.000000", 6, 1_000_000),
        ("0.000001", 6, 1),
        ("0.5", 1, 5),
        ("10", 0, 10),
        ("12.50", 2, 1250),
        ("12.05", 2, 1205),
        ("12.05", 8, 1_205_000_000),
        ("50000000.00000000", 8, 5_000_000_000_000_000),
        ("0.000000000000000001", 18, 1),
        ("1844674407370955161", 0, MAX_WHOLE_UNITS),
        ("1844674407370955161", 18, MAX_WHOLE_UNITS * 10**18),
        ("1844674407370955160.999999999999999999", 18, MAX_WHOLE_UNITS * 10**18 - 1),
    ],
)
def test_a_plain_decimal_is_parsed_exactly(text: str, decimals: int, amount: int) -> None:
    assert parse_amount(text, decimals) == amount


@pytest.mark.parametrize(
    ("text", "decimals"),
    [
        ("1.123456789", 6),
        ("1.0000000", 6),
        ("0.0000001", 6),
        ("0.00", 1),
        ("1.5", 0),
        ("1.0", 0),
        ("9" * 30 + ".001", 2),
        ("0.0000000000000000001", 18),
    ],
)
def test_more_decimals_than_the_asset_has_are_never_rounded(text: str, decimals: int) -> None:
    assert parse_amount(text, decimals) is Refusal.PRECISION_OVERFLOW


@pytest.mark.parametrize("decimals", [0, 6, 18])
@pytest.mark.parametrize(
    "text", [str(MAX_WHOLE_UNITS + 1), str(2**63), str(2**64), str(2**128), "9" * MAX_AMOUNT_CHARS]
)
def test_more_than_a_tenth_of_64_bits_of_whole_units_overflows(text: str, decimals: int) -> None:
    assert parse_amount(text, decimals) is Refusal.OVERFLOW


def test_one_unit_above_the_largest_amount_overflows() -> None:
    assert parse_amount("1844674407370955161.000001", 6) is Refusal.OVERFLOW


def test_a_balance_can_hold_the_sum_of_many_largest_amounts() -> None:
    largest = parse_amount(str(MAX_WHOLE_UNITS), MAX_DECIMALS)
    assert isinstance(largest, int)
    assert 64 * largest < MAX_AMOUNT < 2**127


def test_the_length_is_checked_before_the_digits_are_parsed() -> None:
    # Beyond this many digits, int() itself would raise.
    too_long_for_int = "1" * (sys.get_int_max_str_digits() + 1)
    assert parse_amount(too_long_for_int, 0) is Refusal.INVALID_AMOUNT
    assert parse_amount("0." + "1" * (MAX_AMOUNT_CHARS - 2), 18) is Refusal.PRECISION_OVERFLOW


@pytest.mark.parametrize("decimals", [-1, MAX_DECIMALS + 1])
def test_an_impossible_number_of_decimals_is_a_bug(decimals: int) -> None:
    with pytest.raises(AssertionError, match="cannot have"):
        parse_amount("1", decimals)


def by_rational_arithmetic(text: str, decimals: int) -> int | Refusal:
    """The same rule written in another way: without regular expression and padding."""
    if len(text) > 64 or not text or any(c not in "0123456789." for c in text):
        return Refusal.INVALID_AMOUNT
    whole, *rest = text.split(".")
    if len(rest) > 1 or not whole or "" in rest or (whole[0] == "0" and whole != "0"):
        return Refusal.INVALID_AMOUNT
    if rest and len(rest[0]) > decimals:
        return Refusal.PRECISION_OVERFLOW
    value = sum(
        (Fraction(int(digit), 10**n) for n, digit in enumerate(rest[0] if rest else "", 1)),
        start=Fraction(int(whole)),
    )
    if value == 0:
        return Refusal.INVALID_AMOUNT
    if value > (2**64 - 1) // 10:
        return Refusal.OVERFLOW
    units = value * 10**decimals
    assert units.denominator == 1
    return int(units)


decimal_places = st.integers(0, MAX_DECIMALS)
near_amounts = st.one_of(
    st.from_regex(r"[0-9]{0,21}(\.[0-9]{0,20})?", fullmatch=True),
    st.text(alphabet="0123456789.-+eE_ ,", max_size=12),
    st.integers(MAX_WHOLE_UNITS - 2, MAX_WHOLE_UNITS + 2).map(str),
    st.text(max_size=8),
)


@given(near_amounts, decimal_places)
def test_both_implementations_agree(text: str, decimals: int) -> None:
    assert parse_amount(text, decimals) == by_rational_arithmetic(text, decimals)


@given(st.data())
def test_a_formatted_amount_is_parsed_as_the_same_amount(draws: st.DataObject) -> None:
    decimals = draws.draw(decimal_places)
    amount = draws.draw(st.integers(1, MAX_WHOLE_UNITS * 10**decimals))
    assert parse_amount(format_amount(amount, decimals), decimals) == amount


@given(st.integers(-MAX_AMOUNT, MAX_AMOUNT), decimal_places)
def test_a_formatted_amount_is_exact(amount: int, decimals: int) -> None:
    text = format_amount(amount, decimals)
    assert Fraction(text) == Fraction(amount, 10**decimals)
    assert len(text.partition(".")[2]) == decimals


@pytest.mark.parametrize(
    ("amount", "decimals", "text"),
    [
        (0, 0, "0"),
        (0, 2, "0.00"),
        (5, 0, "5"),
        (5, 3, "0.005"),
        (-5, 3, "-0.005"),
        (-1250, 2, "-12.50"),
        (5_000_000_000_000_000, 8, "50000000.00000000"),
    ],
)
def test_an_amount_is_written_with_all_its_decimals(amount: int, decimals: int, text: str) -> None:
    assert format_amount(amount, decimals) == text
