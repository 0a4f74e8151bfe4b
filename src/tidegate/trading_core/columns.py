"""Plain moves by columns: many are read, and their records and answers written, at once.

A column is every so-many-th byte of rows that all have one size. To cut, compare or copy it is
one call for all rows; a call for each row costs more than to judge it.
"""

import struct
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

from tidegate.core.wire import ANSWER, OPERATION, RECORD, Malformed, Outcome, Status, Verb
from tidegate.trading_core.accounts import GROUP

# The hot loops compare plain numbers: an enum member costs a lookup and a call.
DEBIT, CREDIT, REFUND = int(Verb.DEBIT), int(Verb.CREDIT), int(Verb.REFUND)
DONE, TOMBSTONE = int(Outcome.DONE), int(Outcome.TOMBSTONE)
ACTIVE = int(Status.ACTIVE)

# Where the fields of an operation stand. A record begins with all of them, and goes on with the
# outcome, the change and the balance after it.
VERB_AT, GROUP_AT, AMOUNT_AT = 20, 26, 39
OUTCOME_AT, CHANGE_AT, BALANCE_AT = 55, 56, 72
HALF, WHOLE = 8, 16  # Bytes of an amount. The upper half is seldom more than zeros.
MODE_AND_UNDOES = range(21, 26)
UPPER_AMOUNT = range(AMOUNT_AT, AMOUNT_AT + HALF)
UPPER_BALANCE = range(BALANCE_AT, BALANCE_AT + HALF)
assert (OPERATION.size, RECORD.size) == (OUTCOME_AT, BALANCE_AT + WHOLE)

# Rows are read many at a time, because to begin with each one costs as much as to read it.
ASKED = "20s6x5sQ8xQ"  # Key, book and asset, owner, and the amount's lower half.
RECORDED = "20s6x5sQ8xQ25xQ"  # The same, and the balance's lower half.
WIDE = struct.Struct(">39xQQ")
AT_ONCE = 64
ASKED_ROWS = struct.Struct(">" + ASKED), struct.Struct(">" + AT_ONCE * ASKED)
RECORDED_ROWS = struct.Struct(">" + RECORDED), struct.Struct(">" + AT_ONCE * RECORDED)
PREFIX = f"{OPERATION.size}s{RECORD.size - OPERATION.size}x"
OPERATION_ROWS = struct.Struct(PREFIX), struct.Struct(AT_ONCE * PREFIX)
assert (ASKED_ROWS[0].size, WIDE.size) == (OPERATION.size, OPERATION.size)
assert RECORDED_ROWS[0].size == RECORD.size

WHOLE_OPERATION = struct.Struct(f"{OPERATION.size}s")
DONE_BYTE = bytes([DONE])
BLANK = bytes(OUTCOME_AT) + DONE_BYTE + bytes(2 * WHOLE)
NOT_DONE = bytes(code != DONE for code in range(256))  # As bytes.translate takes it.
SIGN = bytes(128) + b"\xff" * 128  # What stands before a signed number that begins with a byte.
FEW = 32  # Rows for which it does not pay to cut columns.


class Moves(NamedTuple):
    """Operations or records by columns. The verb is 0 where a row is more than a plain move."""

    keys: tuple[bytes, ...]
    groups: tuple[bytes, ...]  # Or one that stands for all.
    owners: tuple[int, ...]
    amounts: tuple[int, ...]
    verbs: bytes
    operations: bytes  # As they were asked, in rows.
    balances: tuple[int, ...] = ()  # After each, of records.


def read_operations(body: bytes) -> Moves:
    cells, size = _cells(ASKED_ROWS, body), OPERATION.size
    groups, amounts = _groups(cells[1::4], body, size), cells[3::4]
    if any(_filled(body, size, UPPER_AMOUNT)):
        amounts = tuple([high << 64 | low for high, low in WIDE.iter_unpack(body)])
    verbs = _plain(body[VERB_AT::size], _filled(body, size, MODE_AND_UNDOES))
    return Moves(cells[::4], groups, cells[2::4], amounts, verbs, body)


def read_records(body: bytes) -> Moves:
    """Wide numbers and what was not done are no plain moves here."""
    cells, size = _cells(RECORDED_ROWS, body), RECORD.size
    strange = _filled(body, size, chain(MODE_AND_UNDOES, UPPER_AMOUNT, UPPER_BALANCE))
    outcomes = body[OUTCOME_AT::size]
    if outcomes.count(DONE) != len(outcomes):
        strange.append(outcomes.translate(NOT_DONE))
    verbs = _plain(body[VERB_AT::size], strange)
    groups = _groups(cells[1::5], body, size)
    operations = b"".join(_cells(OPERATION_ROWS, body))
    return Moves(cells[::5], groups, cells[2::5], cells[3::5], verbs, operations, cells[4::5])


def _cells(forms: tuple[struct.Struct, struct.Struct], body: bytes) -> tuple[Any, ...]:
    one, many = forms
    cells: list[Any] = []
    if len(body) % one.size:
        raise Malformed(f"{len(body)} bytes are no whole number of {one.size}-byte rows")
    split = len(body) // many.size * many.size
    for some in many.iter_unpack(body[:split]):
        cells += some
    for single in one.iter_unpack(body[split:]):
        cells += single
    return tuple(cells)


def _groups(groups: tuple[bytes, ...], body: bytes, size: int) -> tuple[bytes, ...]:
    """One of them, if all are the same."""
    columns = (body[at::size] for at in range(GROUP_AT, GROUP_AT + GROUP))
    same = all(column[:1] * len(column) == column for column in columns)
    return groups[:1] if same else groups


def _filled(body: bytes, size: int, columns: Iterable[int]) -> list[bytes]:
    """Those columns that hold anything but zeros."""
    zeros = bytes(len(body) // size)
    return [column for at in columns if (column := body[at::size]) != zeros]


def _plain(verbs: bytes, strange: Sequence[bytes]) -> bytes:
    """The verbs of the rows that have zeros in all of these columns."""
    if not strange:
        return verbs
    return bytes([0 if any(cells) else verb for verb, *cells in zip(verbs, *strange, strict=True)])


def pack_done(operations: bytes, amounts: Sequence[int], balances: Sequence[int]) -> bytes:
    """The records of plain moves that are done: each operation, and what it led to."""
    verbs = operations[VERB_AT :: OPERATION.size]
    changes = amounts
    if verbs.count(CREDIT) < len(verbs):
        changes = [a if verb == CREDIT else -a for verb, a in zip(verbs, amounts, strict=True)]
    if len(verbs) < FEW:
        asked = (cells[0] for cells in WHOLE_OPERATION.iter_unpack(operations))
        return b"".join(map(_record, asked, changes, balances))
    table = bytearray(BLANK * len(verbs))
    for at in range(OUTCOME_AT):
        table[at :: RECORD.size] = operations[at :: OPERATION.size]
    _write(table, CHANGE_AT, changes)
    _write(table, BALANCE_AT, balances)
    return bytes(table)


def _record(operation: bytes, change: int, balance: int) -> bytes:
    return operation + DONE_BYTE + change.to_bytes(WHOLE, signed=True) + balance.to_bytes(WHOLE)


def _write(table: bytearray, at: int, numbers: Sequence[int]) -> None:
    """Write signed numbers of sixteen bytes down a table of records that holds zeros there."""
    try:
        lower, width = struct.pack(f">{len(numbers)}q", *numbers), HALF
    except struct.error:
        lower, width = b"".join([number.to_bytes(WHOLE, signed=True) for number in numbers]), WHOLE
    for byte in range(width):
        table[at + WHOLE - width + byte :: RECORD.size] = lower[byte::width]
    if width == HALF and min(numbers) < 0:
        sign = lower[::width].translate(SIGN)
        for byte in range(HALF):
            table[at + byte :: RECORD.size] = sign


def pack_answers(after: int, last: int) -> bytes:
    """The answers to operations that are done, whose records follow each other."""
    if last - after < FEW:
        return b"".join([ANSWER.pack(DONE, position) for position in range(after + 1, last + 1)])
    positions = struct.pack(f">{last - after}Q", *range(after + 1, last + 1))
    answers = bytearray(ANSWER.pack(DONE, 0) * (last - after))
    for byte in range(8):
        answers[byte + 1 :: ANSWER.size] = positions[byte::8]
    return bytes(answers)
