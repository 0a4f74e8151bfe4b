"""All accounts, so that one is found with as few looks into main memory as can be.

Owners are mostly numbered one after another. Where they are, an account stands in a list at its
owner's number; the others are in a dict. A dict costs four waits for main memory where a list
costs two, and twice the space.
"""

import struct
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import repeat
from operator import itemgetter

import msgspec

from tidegate.core.wire import ACCOUNT, AccountStatus

ABSENT = int(AccountStatus.ABSENT)
GROUP, OWNER = 5, 8  # Bytes of an account: its book and asset, and then its owner.
PARTS = struct.Struct(f">{GROUP}sQ")
assert ACCOUNT.size == PARTS.size == GROUP + OWNER
FEWEST = 64  # Accounts apart for which it pays to see whether they belong in the list.
SPARSEST = 4  # One in so many places of the list must be taken.


class GroupTotal(msgspec.Struct, gc=False, eq=False):
    """The sum of the balances of one book and asset."""

    name: bytes
    total: int = 0


class AccountState(msgspec.Struct, gc=False, eq=False):
    """All that is known of one account, in one place: to find each part costs a cache miss.

    The garbage collector leaves it alone. It would look at a million of them in vain.
    """

    number: int
    group: GroupTotal
    status: int = ABSENT
    balance: int = 0


NOBODY = AccountState(-1, GroupTotal(b""))  # Stands where no account is, and is never changed.


class AccountGroup:
    """The accounts of one book and asset, by their owners."""

    __slots__ = ("_apart", "_listed", "_look_at", "total")

    def __init__(self, name: bytes) -> None:
        self.total = GroupTotal(name)
        self._listed: list[AccountState] = []  # Of every owner below its length, or NOBODY.
        self._apart: dict[int, AccountState] = {}  # Of the owners from there on.
        self._look_at = FEWEST

    def find(self, owner: int) -> AccountState:
        if owner < len(self._listed):
            return self._listed[owner]
        return self._apart.get(owner, NOBODY)

    def find_all(self, owners: Sequence[int]) -> tuple[AccountState, ...]:
        """In as few steps as there are, so that the processor waits for several at once."""
        if len(owners) > 1:
            with suppress(IndexError):
                found: tuple[AccountState, ...] = itemgetter(*owners)(self._listed)
                return found
        return tuple(map(self.find, owners))

    def add(self, owner: int, state: AccountState) -> None:
        if owner < len(self._listed):
            self._listed[owner] = state
            return
        self._apart[owner] = state
        if len(self._apart) >= self._look_at:
            self._lengthen()
            self._look_at = 2 * len(self._apart) + FEWEST

    def _lengthen(self) -> None:
        """Take those into the list whose numbers are close enough to each other."""
        taken, size = len(self._listed) - self._listed.count(NOBODY), 0
        for bits, count in sorted(Counter(map(int.bit_length, self._apart)).items()):
            taken += count
            if 1 << bits <= SPARSEST * taken:
                size = 1 << bits
        if size <= len(self._listed):
            return
        self._listed += [NOBODY] * (size - len(self._listed))
        apart, self._apart = self._apart, {}
        for owner, state in apart.items():
            if owner < size:
                self._listed[owner] = state
            else:
                self._apart[owner] = state


class Accounts:
    """Every account that there is, in the order of their numbers."""

    def __init__(self) -> None:
        self.groups: dict[bytes, AccountGroup] = {}
        self._states: list[AccountState] = []
        self._owners = array("Q")

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[AccountState]:
        return iter(self._states)

    def items(self) -> Iterator[tuple[bytes, AccountState]]:
        for state, owner in zip(self._states, self._owners, strict=True):
            yield state.group.name + owner.to_bytes(OWNER), state

    def find(self, account: bytes) -> AccountState | None:
        name, owner = PARTS.unpack(account)
        group = self.groups.get(name)
        state = NOBODY if group is None else group.find(owner)
        return None if state is NOBODY else state

    def find_all(self, groups: Sequence[bytes], owners: Sequence[int]) -> tuple[AccountState, ...]:
        """The state of each, and NOBODY for one that there is not. One group stands for all."""
        if len(groups) == 1:
            group = self.groups.get(groups[0])
            return (NOBODY,) * len(owners) if group is None else group.find_all(owners)
        known = {name: self.groups.get(name, NO_GROUP).find for name in set(groups)}
        return tuple([known[name](owner) for name, owner in zip(groups, owners, strict=True)])

    def open_all(self, groups: Sequence[bytes], owners: Sequence[int]) -> Sequence[AccountState]:
        """The state of each, and a new one for each that there was not."""
        found = self.find_all(groups, owners)
        if NOBODY not in set(found):
            return found
        names = groups if len(groups) == len(owners) else repeat(groups[0])
        return [
            self._open(name, owner) if state is NOBODY else state
            for state, name, owner in zip(found, names, owners, strict=False)
        ]

    def _open(self, name: bytes, owner: int) -> AccountState:
        group = self.groups.get(name, NO_GROUP)
        state = group.find(owner)
        if state is NOBODY:
            state = AccountState(len(self._states), group.total)
            self._add(name, owner, state)
        return state

    def add(self, account: bytes, state: AccountState) -> None:
        """Its number must be the next one."""
        assert state.number == len(self._states), f"account {state.number} is out of turn"
        name, owner = PARTS.unpack(account)
        self._add(name, owner, state)

    def _add(self, name: bytes, owner: int, state: AccountState) -> None:
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = AccountGroup(name)
        state.group = group.total
        group.add(owner, state)
        self._states.append(state)
        self._owners.append(owner)


NO_GROUP = AccountGroup(b"")
