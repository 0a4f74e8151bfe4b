"""What is remembered of accounts and of operations: of one, and of many plain moves together."""

from collections.abc import Sequence
from itertools import repeat
from typing import TypeAlias

import msgspec

from tidegate.core.wire import OPERATION
from tidegate.trading_core.accounts import AccountState
from tidegate.trading_core.columns import DONE, Moves

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

MOST_TOGETHER = 256  # A repeated key is searched for among so many.
FEWEST_TOGETHER = 16


def fingerprint(state: AccountState, undoes: int, amount: int) -> int:
    """What a question under the same key must have in common with the first."""
    return amount * AMOUNT + (undoes << UNDOES) + (state.number << FINGERPRINT)


def number_of_move(state: AccountState, amount: int, position: int, verb: int) -> int:
    """What is remembered of a plain move that was done."""
    return fingerprint(state, 0, amount) + position * NEXT | verb << VERB | DONE


class MoveRun(msgspec.Struct, gc=False, eq=False):
    """Plain moves whose records follow each other, remembered together as they were asked.

    To make one number of each takes four others, and almost none is ever looked at again. In one
    piece of bytes they cost the garbage collector nothing.
    """

    before: int  # The position before the first.
    operations: bytes

    def find(self, key: bytes) -> tuple[int, bytes]:
        """The position of one of them, and the operation."""
        at = self.operations.index(key)
        while at % OPERATION.size:  # It stood across others.
            at = self.operations.index(key, at + 1)
        return self.before + 1 + at // OPERATION.size, self.operations[at : at + OPERATION.size]


Memory: TypeAlias = dict[bytes, int | MoveRun]  # By the operation's key.


def remember(
    memory: Memory, before: int, moves: Moves, states: Sequence[AccountState], part: slice
) -> None:
    """Take in a part of these moves, all of which were done."""
    size = OPERATION.size
    if part.stop - part.start < FEWEST_TOGETHER:
        for position, at in enumerate(range(part.start, part.stop), before + 1):
            told = number_of_move(states[at], moves.amounts[at], position, moves.verbs[at])
            memory[moves.keys[at]] = told
        return
    for at in range(part.start, part.stop, MOST_TOGETHER):
        end = min(at + MOST_TOGETHER, part.stop)
        run = MoveRun(before + at - part.start, moves.operations[at * size : end * size])
        memory.update(zip(moves.keys[at:end], repeat(run), strict=False))


def answer_of(number: int) -> tuple[int, int]:
    """Outcome and position."""
    return number & OUTCOMES, number >> 8 & POSITIONS


def verb_of(number: int) -> int:
    return number >> VERB & 3
