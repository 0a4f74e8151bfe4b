"""What is remembered of accounts and of operations: of one, and of many plain moves together."""

from collections.abc import Sequence
from itertools import repeat
from typing import TypeAlias

import msgspec

from tidegate.core.wire import KEY, OPERATION
from tidegate.trading_core.accounts import AccountState
from tidegate.trading_core.move_columns import DONE, VERB_AT, MoveColumns

# One remembered operation is one int: amount | undoes 32 | account 40 | position 48 | verb 2 |
# undone 1 | outcome 5. As a value in a dict it takes 48 bytes while the amount is below 2**52.
POSITION_BITS, ACCOUNT_BITS, UNDOES_BITS = 48, 40, 32
FINGERPRINT = POSITION_BITS + 8  # What lies above this bit is the account, undoes and amount.
UNDOES = FINGERPRINT + ACCOUNT_BITS
AMOUNT = 1 << UNDOES + UNDOES_BITS  # A factor: to multiply and add is faster than to shift.
OUTCOMES, UNDONE_BIT, VERB = 31, 32, 6
NEXT = 1 << 8  # One position further.
POSITIONS = (1 << POSITION_BITS) - 1
VERSION_BITS = 32  # The last four bytes of an operation's key. Keys are kept as they come.

NUMBERED = KEY.size + 32  # Bytes of a row that is a key and its number.

MOST_TOGETHER = 64  # A repeated key is searched for among so many.
FEWEST_TOGETHER = 8  # A run takes a hundred bytes for itself.


def fingerprint(state: AccountState, undoes: int, amount: int) -> int:
    """What a question under the same key must have in common with the first."""
    return amount * AMOUNT + (undoes << UNDOES) + (state.number << FINGERPRINT)


def number_of_move(state: AccountState, amount: int, position: int, told: int) -> int:
    """What is remembered of a plain move, of which the verb and outcome are told in one."""
    return fingerprint(state, 0, amount) + position * NEXT | told


class MoveRun(msgspec.Struct, gc=False, eq=False):
    """Plain moves whose records follow each other, remembered together as they were asked.

    To make one number of each takes four others, and almost none is looked at before a snapshot.
    That makes the numbers, and leaves them here as its rows. In one piece of bytes neither costs
    the garbage collector anything.
    """

    before: int  # The position before the first.
    rows: bytes
    outcomes: bytes = b""  # None: all are done.
    size: int = OPERATION.size  # Of a row.

    @property
    def is_numbered(self) -> bool:
        return self.size == NUMBERED

    def find(self, key: bytes) -> tuple[int, bytes]:
        """Which of them it is, and its row."""
        at = self.rows.index(key)
        while at % self.size:  # It stood across others.
            at = self.rows.index(key, at + 1)
        return at // self.size, self.rows[at : at + self.size]


Memory: TypeAlias = dict[bytes, int | MoveRun]  # By the operation's key.


def remember(
    memory: Memory, before: int, moves: MoveColumns, states: Sequence[AccountState], outcomes: bytes
) -> None:
    """Take in plain moves. No outcomes: all are done."""
    size, count = OPERATION.size, len(moves.keys)
    if count < FEWEST_TOGETHER:
        told = tell(moves.operations, outcomes)
        kept = map(
            number_of_move, states, moves.amounts, range(before + 1, before + count + 1), told
        )
        memory.update(zip(moves.keys, kept, strict=True))
        return
    for at in range(0, count, MOST_TOGETHER):
        end = at + MOST_TOGETHER
        run = MoveRun(before + at, moves.operations[at * size : end * size], outcomes[at:end])
        memory.update(zip(moves.keys[at:end], repeat(run), strict=False))


def tell(operations: bytes, outcomes: bytes) -> list[int]:
    """The verb and outcome of each, in one."""
    verbs = operations[VERB_AT :: OPERATION.size]
    if not outcomes:
        return [verb << VERB | DONE for verb in verbs]
    return [verb << VERB | outcome for verb, outcome in zip(verbs, outcomes, strict=True)]


def answer_of(number: int) -> tuple[int, int]:
    """Outcome and position."""
    return number & OUTCOMES, number >> 8 & POSITIONS


def verb_of(number: int) -> int:
    return number >> VERB & 3
