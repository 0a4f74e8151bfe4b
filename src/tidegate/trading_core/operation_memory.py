"""How the core remembers operations: one by one, or a run of plain moves in one object."""

from collections.abc import Sequence
from itertools import repeat
from typing import TypeAlias

import msgspec

from tidegate.core.wire import KEY, OPERATION
from tidegate.trading_core.accounts import AccountState
from tidegate.trading_core.move_columns import DONE, VERB_AT, MoveColumns

# A remembered operation is packed into one int, its entry: amount | undoes 32 | account 40 |
# position 48 | verb 2 | undone 1 | outcome 5. As a value in a dict an entry takes 48 bytes if the
# amount is below 2**52.
POSITION_BITS, ACCOUNT_BITS, UNDOES_BITS = 48, 40, 32
FINGERPRINT_SHIFT = POSITION_BITS + 8  # The bits from here up are account, undoes and amount.
UNDOES_SHIFT = FINGERPRINT_SHIFT + ACCOUNT_BITS
AMOUNT_UNIT = 1 << UNDOES_SHIFT + UNDOES_BITS  # A factor: multiplying is faster than shifting.
OUTCOME_MASK, UNDONE_BIT, VERB_SHIFT = 31, 32, 6
POSITION_UNIT = 1 << 8  # Added to an entry, it moves its position by one.
POSITION_MASK = (1 << POSITION_BITS) - 1
VERSION_BITS = 32  # The version is the last four bytes of an operation's key.

ENTRY_ROW_SIZE = KEY.size + 32  # Bytes of a row with a key and its entry.

MAX_RUN = 64  # Moves in a run. To find a repeated key, the run is searched.
MIN_RUN = 8  # Fewer moves are stored one by one: a run object itself takes 100 bytes.


def fingerprint(state: AccountState, undoes: int, amount: int) -> int:
    """What a repeated operation must have in common with the first one under its key."""
    return amount * AMOUNT_UNIT + (undoes << UNDOES_SHIFT) + (state.number << FINGERPRINT_SHIFT)


def entry_of_move(state: AccountState, amount: int, position: int, verb_and_outcome: int) -> int:
    """The entry of a plain move. Its verb and outcome come packed in one int."""
    return fingerprint(state, 0, amount) + position * POSITION_UNIT | verb_and_outcome


class MoveRun(msgspec.Struct, gc=False, eq=False):
    """Plain moves with consecutive positions, remembered together as the request rows they were.

    Packing an entry per move creates four temporary ints, and few entries are read before the next
    snapshot. The snapshot packs all entries and stores them here in place of the request rows. As
    one bytes object, neither form costs the garbage collector anything.
    """

    before: int  # The position before the first move.
    rows: bytes
    outcomes: bytes = b""  # Empty: all are done.
    size: int = OPERATION.size  # Bytes of a row.

    @property
    def has_entries(self) -> bool:
        return self.size == ENTRY_ROW_SIZE

    def find(self, key: bytes) -> tuple[int, bytes]:
        """The index of the move with this key, and its row."""
        offset = self.rows.index(key)
        while offset % self.size:  # The bytes matched inside a row, not at its key.
            offset = self.rows.index(key, offset + 1)
        return offset // self.size, self.rows[offset : offset + self.size]


Memory: TypeAlias = dict[bytes, int | MoveRun]  # By the operation's key.


def remember(
    memory: Memory, before: int, moves: MoveColumns, states: Sequence[AccountState], outcomes: bytes
) -> None:
    """Remember plain moves. Empty outcomes: all are done."""
    size, count = OPERATION.size, len(moves.keys)
    if count < MIN_RUN:
        positions = range(before + 1, before + count + 1)
        packed = pack_verbs_and_outcomes(moves.operations, outcomes)
        entries = map(entry_of_move, states, moves.amounts, positions, packed)
        memory.update(zip(moves.keys, entries, strict=True))
        return
    for start in range(0, count, MAX_RUN):
        end = start + MAX_RUN
        rows = moves.operations[start * size : end * size]
        run = MoveRun(before + start, rows, outcomes[start:end])
        memory.update(zip(moves.keys[start:end], repeat(run), strict=False))


def pack_verbs_and_outcomes(operations: bytes, outcomes: bytes) -> list[int]:
    """The verb and outcome of each operation, packed in one int."""
    verbs = operations[VERB_AT :: OPERATION.size]
    if not outcomes:
        return [verb << VERB_SHIFT | DONE for verb in verbs]
    return [verb << VERB_SHIFT | outcome for verb, outcome in zip(verbs, outcomes, strict=True)]


def answer_of(entry: int) -> tuple[int, int]:
    """The outcome and position in an entry."""
    return entry & OUTCOME_MASK, entry >> 8 & POSITION_MASK


def verb_of(entry: int) -> int:
    return entry >> VERB_SHIFT & 3
