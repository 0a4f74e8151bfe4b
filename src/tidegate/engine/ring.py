"""Hands transfers over inside the process, so that they need not wait for a scan of the table."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Self, TypeVar, cast

from tidegate.core.kind import Transfer
from tidegate.core.moves import Moves
from tidegate.core.transfer import Step

RING_SIZE = 10_000
EXPECTED_S = 0.2  # How long the owners of a batch stay marked while an outside system is asked.

T = TypeVar("T")


class BusyOwners:
    """Owners whose accounts a transaction of this process locks. New requests of them wait.

    Two batches with a common account wait for each other's commit in the database, and so do all
    their other rows. This only saves time: the locks in the database make it correct.
    """

    def __init__(self, freed: Callable[[], None]) -> None:
        self._freed = freed  # Called when an owner was passed over and owners were unmarked.
        self._busy: Counter[int | None] = Counter()  # Number of batches by owner.
        self._passed_over: set[int] = set()  # Owners that are taken next when they are free.
        self._notify = False  # An owner was passed over since the last call of `_freed`.

    def choose(self, waiting: "deque[T]", limit: int, owner: Callable[[T], int | None]) -> list[T]:
        """Take the first items whose owners are in no batch. The others keep their order.

        Stop after `limit` items that were passed over: the whole queue may be of one owner.
        """
        chosen: list[T] = []
        passed: list[T] = []
        chosen_owners: set[int] = set()
        busy = self._busy
        while waiting and len(chosen) < limit and len(passed) < limit:
            item = waiting.popleft()
            item_owner = owner(item)
            if item_owner is not None and item_owner in busy:
                passed.append(item)
                self._passed_over.add(item_owner)
            else:
                chosen.append(item)
                if item_owner is not None:
                    chosen_owners.add(item_owner)
        self._passed_over -= chosen_owners
        if passed:
            self._notify = True
            waiting.extendleft(reversed(passed))
        return chosen

    def expecting(self) -> "ExpectedOwners":
        """A context for the time in which a system is asked. Call it with the batch's owners."""
        return ExpectedOwners(self)

    def locking(self, owners: Iterable[int | None]) -> "LockedOwners":
        """A context for the time of a transaction that locks accounts of these owners."""
        return LockedOwners(self, owners)

    def without_passed_over(self, owners: Iterable[int | None]) -> Iterable[int | None]:
        passed = self._passed_over
        return [owner for owner in owners if owner not in passed] if passed else owners

    def mark(self, owners: Iterable[int | None]) -> set[int]:
        marked = set(owners)
        marked.discard(None)
        self._busy.update(marked)
        return cast("set[int]", marked)

    def unmark(self, marked: set[int]) -> None:
        """Unmark these owners and empty the set, so that a second call changes nothing."""
        busy = self._busy
        for owner in marked:
            if busy[owner] == 1:
                del busy[owner]
            else:
                busy[owner] -= 1
        marked.clear()
        if self._notify:
            self._notify = False
            self._freed()


class ExpectedOwners:
    """Marks the owners of a batch while a system is asked about it, for EXPECTED_S at most.

    The answer may be late, and their other requests must not wait for it. An owner that was passed
    over is not marked again before its next request is taken: otherwise an owner whose transfers
    are asked about all the time would never get a request through.
    """

    # Not a generator: each turn of each lane makes one, and most turns have nothing to ask.
    __slots__ = ("_busy_owners", "_owners", "_timer")

    def __init__(self, busy_owners: BusyOwners) -> None:
        self._busy_owners = busy_owners
        self._owners: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        return self

    def __call__(self, owners: Iterable[int | None]) -> None:
        busy_owners = self._busy_owners
        self._owners |= busy_owners.mark(busy_owners.without_passed_over(owners))
        if self._owners:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(EXPECTED_S, busy_owners.unmark, self._owners)

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._busy_owners.unmark(self._owners)


class LockedOwners:
    """Marks owners while a transaction locks their accounts."""

    __slots__ = ("_busy_owners", "_owners")

    def __init__(self, busy_owners: BusyOwners, owners: Iterable[int | None]) -> None:
        self._busy_owners, self._owners = busy_owners, busy_owners.mark(owners)

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self._busy_owners.unmark(self._owners)


class Ring:
    """Leased transfers for one lane. At most `size`, together with the reserved entries."""

    def __init__(self, size: int = RING_SIZE) -> None:
        self.size = size
        self.open = True
        self.reserved = 0
        self._entries: deque[tuple[float, Transfer]] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    def reserve(self, wanted: int = 1) -> int:
        """Reserve entries before rows are leased. Return how many: perhaps fewer than wanted.

        A row without an entry is not leased. It stays due, and a scan finds it.
        """
        free = self.size - len(self._entries) - self.reserved if self.open else 0
        count = max(min(wanted, free), 0)
        self.reserved += count
        return count

    def free(self, count: int = 1) -> None:
        assert self.reserved >= count, "an entry was freed twice"
        self.reserved -= count

    def put(self, transfers: Sequence[Transfer], expires_s: float) -> None:
        self.free(len(transfers))
        self._entries.extend(zip(repeat(expires_s), transfers, strict=False))

    def pop(self, limit: int, now_s: float) -> list[Transfer]:
        """Take the oldest entries. Drop those whose lease has ended: another worker may have it."""
        entries = self._entries
        while entries and entries[0][0] <= now_s:
            entries.popleft()
        oldest = [entries.popleft() for _ in range(min(limit, len(entries)))]
        return [transfer for expires_s, transfer in oldest if expires_s > now_s]


class RingReservation:
    """The ring entries that one transaction has reserved. They are filled after its commit."""

    def __init__(self, rings: Mapping[str, Ring], expires_s: float) -> None:
        self._rings = rings
        self._expires_s = expires_s
        self._lanes: list[str | None] = []  # The lane of each move, None without an entry.
        self._counts: dict[str, int] = {}  # Number of reserved entries by lane.

    def reserve(self, moves: Moves, *, halted: bool) -> list[bool]:
        """Return for each move whether it has an entry. Those rows are leased when written."""
        if halted:
            self._lanes = [None] * len(moves)
            return [False] * len(moves)
        wanted = [self._lane(group.step) for group in moves.groups]
        lanes: list[str | None] = [None] * len(moves)
        if len(set(wanted)) == 1:
            lanes = wanted[:1] * len(moves)
        else:
            for group, lane in zip(moves.groups, wanted, strict=True):
                for index in group.indexes if lane is not None else ():
                    lanes[index] = lane
        self._lanes = lanes
        for lane in {lane for lane in wanted if lane is not None}:
            needed = self._lanes.count(lane)
            self._counts[lane] = reserved = self._rings[lane].reserve(needed)
            if reserved < needed:
                self._keep_first(lane, reserved)
        return [lane is not None for lane in self._lanes]

    def _lane(self, step: Step) -> str | None:
        lane = step.after.lane
        return None if step.delay_s > 0 or lane not in self._rings else lane

    def _keep_first(self, lane: str, count: int) -> None:
        """The ring has too few entries: the first moves of the batch get them."""
        indexes = [index for index, wanted in enumerate(self._lanes) if wanted == lane]
        for index in indexes[count:]:
            self._lanes[index] = None

    def hand_over(self, rows: Sequence[Transfer]) -> set[str]:
        """Put the committed rows into their rings, in order. Return the lanes that have work."""
        by_lane: dict[str, list[Transfer]] = {}
        for row, lane in zip(rows, self._lanes, strict=True) if self._counts else ():
            if lane is not None:
                by_lane.setdefault(lane, []).append(row)
        for lane, transfers in by_lane.items():
            self._rings[lane].put(transfers, self._expires_s)
        self._counts = {}
        return set(by_lane)

    def free(self) -> None:
        for lane, count in self._counts.items():
            self._rings[lane].free(count)
        self._counts = {}
