"""What is remembered of accounts and of operations: of one, and of many plain moves together."""

from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count, repeat
from typing import TypeAlias

import msgspec

from tidegate.core.wire import Outcome, Status, Verb

# The hot loops compare plain numbers: an enum member costs a lookup and a call.
DEBIT, CREDIT, REFUND = int(Verb.DEBIT), int(Verb.CREDIT), int(Verb.REFUND)
DONE, TOMBSTONE = int(Outcome.DONE), int(Outcome.TOMBSTONE)
ACTIVE, ABSENT = int(Status.ACTIVE), int(Status.ABSENT)

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


class GroupTotal(msgspec.Struct, gc=False, eq=False):
    """The sum of the balances of one book and asset."""

    total: int = 0


class AccountState(msgspec.Struct, gc=False, eq=False):
    """All that is known of one account, in one place: to find each part costs a cache miss.

    The garbage collector leaves it alone. It would look at a million of them in vain.
    """

    number: int  # Shifted to where a remembered operation has it.
    group: GroupTotal
    status: int = ABSENT
    balance: int = 0


class MoveRun(msgspec.Struct, gc=False, eq=False):
    """Plain moves whose records follow each other, remembered together.

    To make one number of each takes four others, and almost none is ever looked at again.
    """

    before: int  # The position before the first.
    keys: tuple[bytes, ...]
    states: tuple[AccountState, ...]
    amounts: Sequence[int]
    verbs: bytes

    def number_at(self, index: int) -> int:
        """What is remembered of one of them, as of any operation."""
        position = self.before + 1 + index
        what = self.amounts[index] * AMOUNT + self.states[index].number + position * NEXT
        return what | self.verbs[index] << VERB | DONE

    def number_of(self, key: bytes) -> int:
        return self.number_at(self.keys.index(key))

    def pieces(self) -> Iterator["MoveRun"]:
        """The same, in parts in which a key is soon found."""
        for first in range(0, len(self.keys), MOST_TOGETHER):
            part = slice(first, first + MOST_TOGETHER)
            amounts: Sequence[int] = self.amounts[part]
            with suppress(OverflowError):
                amounts = array("Q", amounts)  # In a quarter of the space, unless one is wide.
            yield MoveRun(
                self.before + first, self.keys[part], self.states[part], amounts, self.verbs[part]
            )


Memory: TypeAlias = dict[bytes, int | MoveRun]  # By the operation's key.


def remember(memory: Memory, moves: MoveRun) -> None:
    """Take in plain moves that were done."""
    if len(moves.keys) < FEWEST_TOGETHER:
        memory.update(zip(moves.keys, map(moves.number_at, count()), strict=False))
        return
    for run in moves.pieces():
        memory.update(zip(run.keys, repeat(run), strict=False))


def numbers(memory: Memory) -> Iterator[tuple[bytes, int]]:
    """Each operation's key and what is remembered of it, in the order of the memory."""
    run: int | MoveRun = 0
    unfolded: dict[bytes, int] = {}
    for key, kept in memory.items():
        if isinstance(kept, int):
            yield key, kept
            continue
        if kept is not run:  # Those of a run follow each other.
            run, unfolded = kept, dict(zip(kept.keys, map(kept.number_at, count()), strict=False))
        yield key, unfolded[key]


def number_in(memory: Memory, key: bytes) -> int | None:
    """What is remembered under a key."""
    kept = memory.get(key)
    return kept if kept is None or isinstance(kept, int) else kept.number_of(key)


def answer_of(number: int) -> tuple[int, int]:
    """Outcome and position."""
    return number & OUTCOMES, number >> 8 & POSITIONS


def verb_of(number: int) -> int:
    return number >> VERB & 3
