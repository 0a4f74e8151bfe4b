"""Plain moves by columns: many are read, and their records and answers written, at once.

A column is every so-many-th byte of rows that all have one size. To cut, compare or copy it is
one call for all rows; a call for each row costs more than to judge it.
"""

import struct
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

from tidegate.core.wire import (
    ANSWER,
    OPERATION,
    RECORD,
    AccountStatus,
    CoreOutcome,
    CoreVerb,
    MalformedFrame,
)
from tidegate.trading_core.accounts import GROUP

# The hot loops compare plain numbers: an enum member costs a lookup and a call.
DEBIT, CREDIT, REFUND = int(CoreVerb.DEBIT), int(CoreVerb.CREDIT), int(CoreVerb.REFUND)
DONE, TOMBSTONE = int(CoreOutcome.DONE), int(CoreOutcome.TOMBSTONE)
ACTIVE = int(AccountStatus.ACTIVE)

# Where the fields of an operation stand. A record begins with all of them, and goes on with the
# outcome, the change and the balance after it.
VERB_AT, GROUP_AT, AMOUNT_AT = 20, 26, 39
OUTCOME_AT, CHANGE_AT, BALANCE_AT = 55, 56, 72
HALF, WHOLE = 8, 16  # Bytes of an amount. The upper half is seldom more than zeros.
MODE_AND_UNDOES = range(21, 26)
UPPER_AMOUNT = range(AMOUNT_AT, AMOUNT_AT + HALF)
UPPER_BALANCE = range(BALANCE_AT, BALANCE_AT + HALF)
assert (OPERATION.size, RECORD.size) == (OUTCOME_AT, BALANCE_AT + WHOLE)

AT_ONCE = 64  # Rows that are read or written by one call, because to begin one takes its time.
Forms: TypeAlias = tuple[struct.Struct, struct.Struct]  # Of one row, and of so many.


def forms_of(row: str, size: int) -> Forms:
    one, many = struct.Struct(">" + row), struct.Struct(">" + row * AT_ONCE)
    assert one.size == size, f"{row} is no row of {size} bytes"
    return one, many


# Key, book and asset, owner, and the amount's lower half; of records, the balance's, too.
ASKED_ROWS = forms_of("20s6x5sQ8xQ", OPERATION.size)
RECORDED_ROWS = forms_of("20s6x5sQ8xQ25xQ", RECORD.size)
WIDE_AMOUNTS = struct.Struct(">39xQQ")
# The operations as they stand in records; and records of them without the outcome. Of a change
# below zero the upper half is the sign.
OPERATION_ROWS = forms_of("55s", OPERATION.size)
PREFIX_ROWS = forms_of("55s33x", RECORD.size)
CREDITED_ROWS = forms_of("56s8xQ8xQ", RECORD.size)
MOVED_ROWS = forms_of("56sqq8xQ", RECORD.size)
WIDE_ROWS = forms_of("56s16s16s", RECORD.size)

REFUSALS = bytes(c if CoreOutcome.INVALID_AMOUNT <= c < CoreOutcome.BUSY else 0 for c in range(256))
NOT_DONE = bytes(code != DONE for code in range(256))  # As bytes.translate takes it.
LOWEST = struct.pack(">65536H", *range(65_536))  # The last two bytes of every position.


class MoveColumns(NamedTuple):
    """Operations or records by columns. The verb is 0 where a row is more than a plain move."""

    keys: tuple[bytes, ...]
    groups: tuple[bytes, ...]  # Or one that stands for all.
    owners: tuple[int, ...]
    amounts: tuple[int, ...]
    verbs: bytes
    operations: bytes  # As they were asked, in rows.
    balances: tuple[int, ...] = ()  # After each, of records.
    refusals: bytes = b""  # Of records: the outcome of a refused plain move, and 0 for others.

    def part(self, first: int, last: int) -> "MoveColumns":
        """Some that follow each other, whose accounts are known by now."""
        if last - first == len(self.keys):
            return self
        rows = self.operations[first * OPERATION.size : last * OPERATION.size]
        part = slice(first, last)
        return MoveColumns(self.keys[part], (), (), self.amounts[part], self.verbs[part], rows)


def read_operations(body: bytes) -> MoveColumns:
    cells, size = read_cells(ASKED_ROWS, body), OPERATION.size
    groups, amounts = _groups(cells[1::4], body, size), cells[3::4]
    if _filled(body, size, UPPER_AMOUNT):
        amounts = tuple([high << 64 | low for high, low in WIDE_AMOUNTS.iter_unpack(body)])
    verbs = _plain(body[VERB_AT::size], _filled(body, size, MODE_AND_UNDOES))
    return MoveColumns(cells[::4], groups, cells[2::4], amounts, verbs, body)


def read_records(body: bytes) -> MoveColumns:
    """Wide numbers and what was not done are no plain moves here."""
    cells, size = read_cells(RECORDED_ROWS, body), RECORD.size
    strange = _filled(body, size, chain(MODE_AND_UNDOES, UPPER_AMOUNT, UPPER_BALANCE))
    verbs, outcomes = _plain(body[VERB_AT::size], strange), body[OUTCOME_AT::size]
    refusals = b""
    if outcomes.count(DONE) != len(outcomes):
        told = zip(verbs, outcomes.translate(REFUSALS), strict=True)
        refusals = bytes([outcome if verb in (CREDIT, DEBIT) else 0 for verb, outcome in told])
        refusals = _plain(refusals, _filled(body, size, range(CHANGE_AT, BALANCE_AT)))
        verbs = _plain(verbs, [outcomes.translate(NOT_DONE)])
    groups = _groups(cells[1::5], body, size)
    operations = b"".join(read_cells(PREFIX_ROWS, body))
    return MoveColumns(
        cells[::5], groups, cells[2::5], cells[3::5], verbs, operations, cells[4::5], refusals
    )


def read_cells(forms: Forms, body: bytes) -> tuple[Any, ...]:
    one, many = forms
    cells: list[Any] = []
    if len(body) % one.size:
        raise MalformedFrame(f"{len(body)} bytes are no whole number of {one.size}-byte rows")
    split = len(body) // many.size * many.size
    for some in many.iter_unpack(body[:split]):
        cells += some
    for single in one.iter_unpack(body[split:]):
        cells += single
    return tuple(cells)


def _groups(groups: tuple[bytes, ...], body: bytes, size: int) -> tuple[bytes, ...]:
    """One of them, if all are the same."""
    count, first = len(groups), body[GROUP_AT : GROUP_AT + GROUP]
    for at, byte in enumerate(first, GROUP_AT):
        if body[at::size].count(byte) != count:
            return groups
    return groups[:1]


def _filled(body: bytes, size: int, columns: Iterable[int]) -> list[bytes]:
    """Those columns that hold anything but zeros."""
    zeros = bytes(len(body) // size)
    return [column for at in columns if (column := body[at::size]) != zeros]


def _plain(verbs: bytes, strange: Sequence[bytes]) -> bytes:
    """The verbs of the rows that have zeros in all of these columns, and 0 for the others."""
    if not strange:
        return verbs
    return bytes([0 if any(cells) else verb for verb, *cells in zip(verbs, *strange, strict=True)])


def pack_records(moves: MoveColumns, balances: Sequence[int], outcomes: bytes) -> bytes:
    """The records of plain moves: each operation, and what it led to. No outcomes: all done."""
    asked = read_cells(OPERATION_ROWS, moves.operations)
    changes: Sequence[int] = moves.amounts
    try:
        if not outcomes and moves.verbs.count(CREDIT) == len(asked):
            table = pack_cells(CREDITED_ROWS, (asked, changes, balances))
        else:
            told = zip(moves.verbs, changes, strict=True)
            changes = [amount if verb == CREDIT else -amount for verb, amount in told]
            if outcomes:
                did = (outcome == DONE for outcome in outcomes)
                changes = [a if done else 0 for a, done in zip(changes, did, strict=True)]
            signs = [change >> 63 for change in changes]
            table = pack_cells(MOVED_ROWS, (asked, signs, changes, balances))
    except struct.error:
        wide = [change.to_bytes(WHOLE, signed=True) for change in changes]
        table = pack_cells(WIDE_ROWS, (asked, wide, [after.to_bytes(WHOLE) for after in balances]))
    table[OUTCOME_AT :: RECORD.size] = outcomes or bytes([DONE]) * len(asked)
    return bytes(table)


def pack_cells(forms: Forms, columns: Sequence[Sequence[Any]]) -> bytearray:
    """Rows of these columns, written many at a time, and the last ones one by one."""
    one, many = forms
    count, width = len(columns[0]), len(columns)
    cells: list[Any] = [0] * (count * width)
    for at, column in enumerate(columns):
        cells[at::width] = column
    table, split = bytearray(count * one.size), count - count % AT_ONCE
    for row in range(0, split, AT_ONCE):
        many.pack_into(table, row * one.size, *cells[row * width : (row + AT_ONCE) * width])
    for row in range(split, count):
        one.pack_into(table, row * one.size, *cells[row * width : (row + 1) * width])
    return table


def pack_answers(before: int, count: int, outcomes: bytes) -> bytes:
    """The answers to plain moves whose records follow each other. No outcomes: all are done.

    Of positions that follow each other only the last two bytes differ, but for one in 65 536.
    """
    answers, last = bytearray(), before + count
    while before < last:
        upper, lower = divmod(before + 1, len(LOWEST) // 2)
        lows = LOWEST[2 * lower : 2 * (lower + last - before)]
        some = bytearray(ANSWER.pack(DONE, upper << 16) * (len(lows) // 2))
        some[ANSWER.size - 2 :: ANSWER.size] = lows[::2]
        some[ANSWER.size - 1 :: ANSWER.size] = lows[1::2]
        answers += some
        before += len(lows) // 2
    if outcomes:
        answers[:: ANSWER.size] = outcomes
    return bytes(answers)
