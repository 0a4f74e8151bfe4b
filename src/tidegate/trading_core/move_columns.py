"""Reads plain moves by columns, and packs their records and answers by columns.

A column is the same byte of every row; all rows have the same size. To slice, compare or copy a
column takes one call for all rows. A call per row would cost more than judging the row does.
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
from tidegate.trading_core.accounts import GROUP_SIZE

# The hot loops compare plain numbers: an enum member costs a lookup and a call.
DEBIT, CREDIT, REFUND = int(CoreVerb.DEBIT), int(CoreVerb.CREDIT), int(CoreVerb.REFUND)
DONE, TOMBSTONE = int(CoreOutcome.DONE), int(CoreOutcome.TOMBSTONE)
ACTIVE = int(AccountStatus.ACTIVE)

# Offsets of the fields of an operation. A record contains the operation, then the outcome, the
# change and the balance after it.
VERB_AT, GROUP_AT, AMOUNT_AT = 20, 26, 39
OUTCOME_AT, CHANGE_AT, BALANCE_AT = 55, 56, 72
AMOUNT_HALF, AMOUNT_SIZE = 8, 16  # Bytes of an amount. The upper half is usually zero.
MODE_AND_UNDOES = range(21, 26)
UPPER_AMOUNT = range(AMOUNT_AT, AMOUNT_AT + AMOUNT_HALF)
UPPER_BALANCE = range(BALANCE_AT, BALANCE_AT + AMOUNT_HALF)
assert (OPERATION.size, RECORD.size) == (OUTCOME_AT, BALANCE_AT + AMOUNT_SIZE)

ROWS_PER_CALL = 64  # More rows per call are faster, because each call has a fixed cost.
RowStructs: TypeAlias = tuple[struct.Struct, struct.Struct]  # For one row; for ROWS_PER_CALL rows.


def row_structs(row: str, size: int) -> RowStructs:
    single, block = struct.Struct(">" + row), struct.Struct(">" + row * ROWS_PER_CALL)
    assert single.size == size, f"{row} does not have {size} bytes"
    return single, block


# Key, book and asset, owner, lower half of the amount; for records also that of the balance.
OPERATION_FIELDS = row_structs("20s6x5sQ8xQ", OPERATION.size)
RECORD_FIELDS = row_structs("20s6x5sQ8xQ25xQ", RECORD.size)
WIDE_AMOUNTS = struct.Struct(">39xQQ")
# Whole operations, the operations in records, and records without the outcome. The upper half of
# a change is its sign.
WHOLE_OPERATIONS = row_structs("55s", OPERATION.size)
OPERATIONS_OF_RECORDS = row_structs("55s33x", RECORD.size)
CREDIT_RECORDS = row_structs("56s8xQ8xQ", RECORD.size)
NARROW_RECORDS = row_structs("56sqq8xQ", RECORD.size)
WIDE_RECORDS = row_structs("56s16s16s", RECORD.size)

# Tables for bytes.translate: keep the codes of refusals, or mark what is not done.
KEEP_REFUSALS = bytes(
    c if CoreOutcome.INVALID_AMOUNT <= c < CoreOutcome.BUSY else 0 for c in range(256)
)
NOT_DONE = bytes(code != DONE for code in range(256))
LOW_BYTES = struct.pack(">65536H", *range(65_536))  # The last two bytes of every position.


class MoveColumns(NamedTuple):
    """Operations or records by columns. The verb is 0 where a row is not a plain move."""

    keys: tuple[bytes, ...]
    groups: tuple[bytes, ...]  # Or a single one, if all rows have the same.
    owners: tuple[int, ...]
    amounts: tuple[int, ...]
    verbs: bytes
    operations: bytes  # The rows of the request.
    balances: tuple[int, ...] = ()  # For records: the balance after each.
    refusals: bytes = b""  # For records: the outcome of a refused plain move, otherwise 0.

    def part(self, first: int, last: int) -> "MoveColumns":
        """A range of the rows, without groups and owners: the accounts are already looked up."""
        if last - first == len(self.keys):
            return self
        rows = self.operations[first * OPERATION.size : last * OPERATION.size]
        part = slice(first, last)
        return MoveColumns(self.keys[part], (), (), self.amounts[part], self.verbs[part], rows)


def read_operations(body: bytes) -> MoveColumns:
    cells, size = read_cells(OPERATION_FIELDS, body), OPERATION.size
    groups, amounts = _groups(cells[1::4], body, size), cells[3::4]
    if _nonzero_columns(body, size, UPPER_AMOUNT):
        amounts = tuple([high << 64 | low for high, low in WIDE_AMOUNTS.iter_unpack(body)])
    verbs = _keep_plain_rows(body[VERB_AT::size], _nonzero_columns(body, size, MODE_AND_UNDOES))
    return MoveColumns(cells[::4], groups, cells[2::4], amounts, verbs, body)


def read_records(body: bytes) -> MoveColumns:
    """Records by columns. Wide numbers and moves that are not done are not plain moves here."""
    cells, size = read_cells(RECORD_FIELDS, body), RECORD.size
    nonzero = _nonzero_columns(body, size, chain(MODE_AND_UNDOES, UPPER_AMOUNT, UPPER_BALANCE))
    verbs, outcomes = _keep_plain_rows(body[VERB_AT::size], nonzero), body[OUTCOME_AT::size]
    refusals = b""
    if outcomes.count(DONE) != len(outcomes):
        pairs = zip(verbs, outcomes.translate(KEEP_REFUSALS), strict=True)
        refusals = bytes([outcome if verb in (CREDIT, DEBIT) else 0 for verb, outcome in pairs])
        refusals = _keep_plain_rows(
            refusals, _nonzero_columns(body, size, range(CHANGE_AT, BALANCE_AT))
        )
        verbs = _keep_plain_rows(verbs, [outcomes.translate(NOT_DONE)])
    groups = _groups(cells[1::5], body, size)
    operations = b"".join(read_cells(OPERATIONS_OF_RECORDS, body))
    return MoveColumns(
        cells[::5], groups, cells[2::5], cells[3::5], verbs, operations, cells[4::5], refusals
    )


def read_cells(structs: RowStructs, body: bytes) -> tuple[Any, ...]:
    """The fields of all rows, in one flat tuple."""
    single, block = structs
    cells: list[Any] = []
    if len(body) % single.size:
        raise MalformedFrame(f"{len(body)} bytes are not a whole number of {single.size}-byte rows")
    split = len(body) // block.size * block.size
    for fields in block.iter_unpack(body[:split]):
        cells += fields
    for fields in single.iter_unpack(body[split:]):
        cells += fields
    return tuple(cells)


def _groups(groups: tuple[bytes, ...], body: bytes, size: int) -> tuple[bytes, ...]:
    """The groups, reduced to a single one if all are the same."""
    count, first = len(groups), body[GROUP_AT : GROUP_AT + GROUP_SIZE]
    for offset, byte in enumerate(first, GROUP_AT):
        if body[offset::size].count(byte) != count:
            return groups
    return groups[:1]


def _nonzero_columns(body: bytes, size: int, columns: Iterable[int]) -> list[bytes]:
    """Those of these columns that contain anything but zeros."""
    zeros = bytes(len(body) // size)
    return [column for offset in columns if (column := body[offset::size]) != zeros]


def _keep_plain_rows(verbs: bytes, nonzero: Sequence[bytes]) -> bytes:
    """The verbs of the rows that have zeros in all of these columns, and 0 for the others."""
    if not nonzero:
        return verbs
    return bytes([0 if any(cells) else verb for verb, *cells in zip(verbs, *nonzero, strict=True)])


def pack_records(moves: MoveColumns, balances: Sequence[int], outcomes: bytes) -> bytes:
    """The records of plain moves. Empty outcomes: all are done."""
    operations = read_cells(WHOLE_OPERATIONS, moves.operations)
    changes: Sequence[int] = moves.amounts
    try:
        if not outcomes and moves.verbs.count(CREDIT) == len(operations):
            table = pack_cells(CREDIT_RECORDS, (operations, changes, balances))
        else:
            pairs = zip(moves.verbs, changes, strict=True)
            changes = [amount if verb == CREDIT else -amount for verb, amount in pairs]
            if outcomes:
                dones = (outcome == DONE for outcome in outcomes)
                changes = [c if done else 0 for c, done in zip(changes, dones, strict=True)]
            signs = [change >> 63 for change in changes]
            table = pack_cells(NARROW_RECORDS, (operations, signs, changes, balances))
    except struct.error:
        wide = [change.to_bytes(AMOUNT_SIZE, signed=True) for change in changes]
        table = pack_cells(
            WIDE_RECORDS, (operations, wide, [after.to_bytes(AMOUNT_SIZE) for after in balances])
        )
    table[OUTCOME_AT :: RECORD.size] = outcomes or bytes([DONE]) * len(operations)
    return bytes(table)


def pack_cells(structs: RowStructs, columns: Sequence[Sequence[Any]]) -> bytearray:
    """Rows of these columns, packed in blocks; the remaining rows are packed one by one."""
    single, block = structs
    count, width = len(columns[0]), len(columns)
    cells: list[Any] = [0] * (count * width)
    for index, column in enumerate(columns):
        cells[index::width] = column
    table, split = bytearray(count * single.size), count - count % ROWS_PER_CALL
    for row in range(0, split, ROWS_PER_CALL):
        block.pack_into(
            table, row * single.size, *cells[row * width : (row + ROWS_PER_CALL) * width]
        )
    for row in range(split, count):
        single.pack_into(table, row * single.size, *cells[row * width : (row + 1) * width])
    return table


def pack_answers(before: int, count: int, outcomes: bytes) -> bytes:
    """The answers to plain moves with consecutive positions. Empty outcomes: all are done.

    Consecutive positions differ in their last two bytes only, except once in 65 536.
    """
    answers, last = bytearray(), before + count
    while before < last:
        upper, lower = divmod(before + 1, len(LOW_BYTES) // 2)
        low_bytes = LOW_BYTES[2 * lower : 2 * (lower + last - before)]
        block = bytearray(ANSWER.pack(DONE, upper << 16) * (len(low_bytes) // 2))
        block[ANSWER.size - 2 :: ANSWER.size] = low_bytes[::2]
        block[ANSWER.size - 1 :: ANSWER.size] = low_bytes[1::2]
        answers += block
        before += len(low_bytes) // 2
    if outcomes:
        answers[:: ANSWER.size] = outcomes
    return bytes(answers)
