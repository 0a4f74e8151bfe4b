"""The accounts of the core, stored so that a lookup causes few cache misses.

Most owner numbers are consecutive. Accounts of such owners are in a list, with the owner number as
the index. All other accounts are in a dict. A lookup in a dict causes four cache misses and a
lookup in a list two. A dict also needs twice the memory.
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
GROUP_SIZE, OWNER_SIZE = 5, 8  # Bytes of an account: its book and asset, then its owner.
ACCOUNT_PARTS = struct.Struct(f">{GROUP_SIZE}sQ")
assert ACCOUNT.size == ACCOUNT_PARTS.size == GROUP_SIZE + OWNER_SIZE
MIN_SPARSE = 64  # With fewer accounts in the dict, extending the list is not considered.
MAX_ENTRIES_PER_ACCOUNT = 4  # The list may have at most so many entries per account in it.


class GroupTotal(msgspec.Struct, gc=False, eq=False):
    """The sum of the balances of one book and asset."""

    name: bytes
    total: int = 0


class AccountState(msgspec.Struct, gc=False, eq=False):
    """The state of one account, in one object because each separate lookup is a cache miss.

    The garbage collector does not track it: scanning a million of these would find no cycle.
    """

    number: int
    group: GroupTotal
    status: int = ABSENT
    balance: int = 0


NO_ACCOUNT = AccountState(-1, GroupTotal(b""))  # Marks a missing account. It is never changed.


class AccountGroup:
    """The accounts of one book and asset, by owner."""

    __slots__ = ("_dense", "_next_check", "_sparse", "total")

    def __init__(self, name: bytes) -> None:
        self.total = GroupTotal(name)
        self._dense: list[AccountState] = []  # By owner number; NO_ACCOUNT where none.
        self._sparse: dict[int, AccountState] = {}  # Owners outside the list.
        self._next_check = MIN_SPARSE

    def find(self, owner: int) -> AccountState:
        if owner < len(self._dense):
            return self._dense[owner]
        return self._sparse.get(owner, NO_ACCOUNT)

    def find_all(self, owners: Sequence[int]) -> tuple[AccountState, ...]:
        """The state of each owner. One call for all lets the processor overlap the cache misses."""
        if len(owners) > 1:
            with suppress(IndexError):
                states: tuple[AccountState, ...] = itemgetter(*owners)(self._dense)
                return states
        return tuple(map(self.find, owners))

    def add(self, owner: int, state: AccountState) -> None:
        if owner < len(self._dense):
            self._dense[owner] = state
            return
        self._sparse[owner] = state
        if len(self._sparse) >= self._next_check:
            self._extend_dense()
            self._next_check = 2 * len(self._sparse) + MIN_SPARSE

    def _extend_dense(self) -> None:
        """Move accounts from the dict into the list, as far as the list stays dense enough."""
        accounts, size = len(self._dense) - self._dense.count(NO_ACCOUNT), 0
        for bits, count in sorted(Counter(map(int.bit_length, self._sparse)).items()):
            accounts += count
            if 1 << bits <= MAX_ENTRIES_PER_ACCOUNT * accounts:
                size = 1 << bits
        if size <= len(self._dense):
            return
        self._dense += [NO_ACCOUNT] * (size - len(self._dense))
        sparse, self._sparse = self._sparse, {}
        for owner, state in sparse.items():
            if owner < size:
                self._dense[owner] = state
            else:
                self._sparse[owner] = state


class Accounts:
    """All accounts, in the order of their numbers."""

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
            yield state.group.name + owner.to_bytes(OWNER_SIZE), state

    def find(self, account: bytes) -> AccountState | None:
        name, owner = ACCOUNT_PARTS.unpack(account)
        group = self.groups.get(name)
        state = NO_ACCOUNT if group is None else group.find(owner)
        return None if state is NO_ACCOUNT else state

    def find_all(self, groups: Sequence[bytes], owners: Sequence[int]) -> tuple[AccountState, ...]:
        """The state of each account, or NO_ACCOUNT. A single group applies to all owners."""
        if len(groups) == 1:
            group = self.groups.get(groups[0])
            return (NO_ACCOUNT,) * len(owners) if group is None else group.find_all(owners)
        finders = {name: self.groups.get(name, NO_GROUP).find for name in set(groups)}
        return tuple([finders[name](owner) for name, owner in zip(groups, owners, strict=True)])

    def open_all(self, groups: Sequence[bytes], owners: Sequence[int]) -> Sequence[AccountState]:
        """The state of each account. Missing accounts are created."""
        states = self.find_all(groups, owners)
        if NO_ACCOUNT not in set(states):
            return states
        names = groups if len(groups) == len(owners) else repeat(groups[0])
        return [
            self._open(name, owner) if state is NO_ACCOUNT else state
            for state, name, owner in zip(states, names, owners, strict=False)
        ]

    def _open(self, name: bytes, owner: int) -> AccountState:
        group = self.groups.get(name, NO_GROUP)
        state = group.find(owner)
        if state is NO_ACCOUNT:
            state = AccountState(len(self._states), group.total)
            self._add(name, owner, state)
        return state

    def add(self, account: bytes, state: AccountState) -> None:
        """Add an account. Its number must be the next one."""
        assert state.number == len(self._states), f"account {state.number} is added out of order"
        name, owner = ACCOUNT_PARTS.unpack(account)
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
