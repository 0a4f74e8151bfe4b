"""Amounts are whole numbers of an asset's smallest unit; only this module parses them."""

import re

from tidegate.core.refusals import Refusal

MAX_WHOLE_UNITS = (2**64 - 1) // 10
MAX_AMOUNT = 2**127 - 1  # The largest balance or amount: a signed 128-bit integer.
MAX_DECIMALS = 18
MAX_AMOUNT_CHARS = 64

# [0-9] and fullmatch, because \d accepts digits of every script, and $ a trailing newline.
_AMOUNT = re.compile(r"(0|[1-9][0-9]*)(?:\.([0-9]+))?")


def parse_amount(text: str, decimals: int) -> int | Refusal:
    """Parse a positive decimal such as "12.50" into a number of smallest units."""
    assert 0 <= decimals <= MAX_DECIMALS, f"an asset cannot have {decimals} decimals"
    match = _AMOUNT.fullmatch(text) if len(text) <= MAX_AMOUNT_CHARS else None
    if match is None:
        return Refusal.INVALID_AMOUNT
    whole, fraction = match[1], match[2] or ""
    if len(fraction) > decimals:
        return Refusal.PRECISION_OVERFLOW
    amount = int(whole + fraction.ljust(decimals, "0"))
    if amount == 0:
        return Refusal.INVALID_AMOUNT
    if amount > MAX_WHOLE_UNITS * 10**decimals:
        return Refusal.OVERFLOW
    return amount


def format_amount(amount: int, decimals: int) -> str:
    """Format a number of smallest units as a decimal with all its decimals."""
    sign, digits = "-" * (amount < 0), str(abs(amount)).rjust(decimals + 1, "0")
    if decimals == 0:
        return sign + digits
    return f"{sign}{digits[:-decimals]}.{digits[-decimals:]}"
