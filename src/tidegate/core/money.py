"""Amounts: whole numbers of an asset's smallest unit. Text becomes an amount here only."""

import re

from tidegate.core.refusals import Refusal

MAX_WHOLE_UNITS = (2**64 - 1) // 10
MAX_AMOUNT = 2**127 - 1  # Of any balance or amount: what fits a signed 128-bit integer.
MAX_DECIMALS = 18
MAX_AMOUNT_CHARS = 64

# Spelled out, because \d accepts digits of every script and $ a trailing newline.
_AMOUNT = re.compile(r"(0|[1-9][0-9]*)(?:\.([0-9]+))?")


def parse_amount(text: str, decimals: int) -> int | Refusal:
    """Read a positive decimal such as «12.50» as a count of smallest units."""
    assert 0 <= decimals <= MAX_DECIMALS, f"an asset cannot have {decimals} decimals"
    found = _AMOUNT.fullmatch(text) if len(text) <= MAX_AMOUNT_CHARS else None
    if found is None:
        return Refusal.INVALID_AMOUNT
    whole, fraction = found[1], found[2] or ""
    if len(fraction) > decimals:
        return Refusal.PRECISION_OVERFLOW
    amount = int(whole + fraction.ljust(decimals, "0"))
    if amount == 0:
        return Refusal.INVALID_AMOUNT
    if amount > MAX_WHOLE_UNITS * 10**decimals:
        return Refusal.OVERFLOW
    return amount


def format_amount(amount: int, decimals: int) -> str:
    """Write a count of smallest units as a decimal, all its decimals shown."""
    sign, digits = "-" * (amount < 0), str(abs(amount)).rjust(decimals + 1, "0")
    if decimals == 0:
        return sign + digits
    return f"{sign}{digits[:-decimals]}.{digits[-decimals:]}"
