"""Hand-over inside a process: the happy path never waits for a scan of the table."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Self, TypeVar, cast

from tidegate.core.kind import Transfer
from tidegate.core.moves import Moves
from tidegate.core.transfer import Step

RING_SIZE = 10_000
EXPECTED_S = 0.2  # So long others keep out of the way of what an outside system is asked about.

T = TypeVar("T")


class BusyOwners:
    """Whose accounts a transaction of this process locks, so that births keep out of its way.

    Two batches with an account in common wait for each other's commit inside the database, and
    all their other rows with them. Only for speed: what is right is seen to by the locks there.
    """

    def __init__(self, freed: Callable[[], None]) -> None:
        self._freed = freed
        self._busy: Counter[int | None] = Counter()  # By owner, in how many batches.
        self._passed_over: set[int] = set()  # Owners whose turn it is as soon as they are free.
        self._waits = False  # Somebody was passed over and not yet called.

    def choose(self, waiting: "deque[T]", limit: int, owner: Callable[[T], int | None]) -> list[T]:
        """The first whose owners are in no batch. The others stay where they are, in their order.

        Not the whole queue is looked through: it may be all of one owner.
        """
        chosen: list[T] = []
        passed: list[T] = []
        owners: set[int] = set()
        busy = self._busy
        while waiting and len(chosen) < limit and len(passed) < limit:
            item = waiting.popleft()
            whose = owner(item)
            if whose is not None and whose in busy:
                passed.append(item)
                self._passed_over.add(whose)
            else:
                chosen.append(item)
                if whose is not None:
                    owners.add(whose)
        self._passed_over -= owners
        if passed:
            self._waits = True
            waiting.extendleft(reversed(passed))
        return chosen

    def expecting(self) -> "ExpectedOwners":
        """For as long as somebody is asked about a batch, whose owners are to be named."""
        return ExpectedOwners(self)

    def locking(self, owners: Iterable[int | None]) -> "LockedOwners":
        """For as long as a transaction takes."""
        return LockedOwners(self, owners)

    def but_passed_over(self, owners: Iterable[int | None]) -> Iterable[int | None]:
        passed = self._passed_over
        return [owner for owner in owners if owner not in passed] if passed else owners

    def take(self, owners: Iterable[int | None]) -> set[int]:
        taken = set(owners)
        taken.discard(None)
        self._busy.update(taken)
        return cast("set[int]", taken)

    def free(self, taken: set[int]) -> None:
        """All of them, and once."""
        busy = self._busy
        for owner in taken:
            if busy[owner] == 1:
                del busy[owner]
            else:
                busy[owner] -= 1
        taken.clear()
        if self._waits:
            self._waits = False
            self._freed()


class ExpectedOwners:
    """Owners of a batch about which a system is asked. They are kept apart for a moment, and no
    longer: the answer may be late, and they want to go on. One who was passed over is not kept
    apart again before his turn: whoever is always asked about would never come to it.
    """

    # Not a generator: each turn of each lane has one, and most turns have nothing to ask.
    __slots__ = ("_busy_owners", "_owners", "_timer")

    def __init__(self, busy_owners: BusyOwners) -> None:
        self._busy_owners = busy_owners
        self._owners: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        return self

    def __call__(self, owners: Iterable[int | None]) -> None:
        busy_owners = self._busy_owners
        self._owners |= busy_owners.take(busy_owners.but_passed_over(owners))
        if self._owners:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(EXPECTED_S, busy_owners.free, self._owners)

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._busy_owners.free(self._owners)


class LockedOwners:
    """Owners whose accounts a transaction locks."""

    __slots__ = ("_busy_owners", "_owners")

    def __init__(self, busy_owners: BusyOwners, owners: Iterable[int | None]) -> None:
        self._busy_owners, self._owners = busy_owners, busy_owners.take(owners)

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self._busy_owners.free(self._owners)


class Ring:
    """Leased transfers on their way into one lane, at most RING_SIZE with what is reserved."""

    def __init__(self, size: int = RING_SIZE) -> None:
        self.size = size
        self.open = True
        self.reserved = 0
        self._entries: deque[tuple[float, Transfer]] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    def reserve(self, wanted: int = 1) -> int:
        """Take slots before the rows are leased, as many as there are; a row without one is left
        due for a scan.
        """
        left = self.size - len(self._entries) - self.reserved if self.open else 0
        taken = max(min(wanted, left), 0)
        self.reserved += taken
        return taken

    def free(self, taken: int = 1) -> None:
        assert self.reserved >= taken, "a slot was freed twice"
        self.reserved -= taken

    def put(self, transfers: Sequence[Transfer], expires_s: float) -> None:
        self.free(len(transfers))
        self._entries.extend(zip(repeat(expires_s), transfers, strict=False))

    def pop(self, limit: int, now_s: float) -> list[Transfer]:
        """The oldest entries whose lease still holds; the others belong to whoever claims them."""
        entries = self._entries
        while entries and entries[0][0] <= now_s:
            entries.popleft()
        oldest = [entries.popleft() for _ in range(min(limit, len(entries)))]
        return [transfer for expires_s, transfer in oldest if expires_s > now_s]


class RingReservation:
    """The slots that one transaction has reserved, to be filled when it has committed."""

    def __init__(self, rings: Mapping[str, Ring], expires_s: float) -> None:
        self._rings = rings
        self._expires_s = expires_s
        self._lanes: list[str | None] = []  # Of each move, where it has a slot.
        self._taken: dict[str, int] = {}  # How many slots, by lane.

    def reserve(self, moves: Moves, *, halted: bool) -> list[bool]:
        """Which of the moves will be handed over: those rows are to be leased."""
        if halted:
            self._lanes = [None] * len(moves)
            return [False] * len(moves)
        wanted = [self._lane(group.step) for group in moves.groups]
        lanes: list[str | None] = [None] * len(moves)
        if len(set(wanted)) == 1:
            lanes = wanted[:1] * len(moves)
        else:
            for group, lane in zip(moves.groups, wanted, strict=True):
                for place in group.places if lane is not None else ():
                    lanes[place] = lane
        self._lanes = lanes
        for lane in {lane for lane in wanted if lane is not None}:
            count = self._lanes.count(lane)
            self._taken[lane] = taken = self._rings[lane].reserve(count)
            if taken < count:
                self._keep(lane, taken)
        return [lane is not None for lane in self._lanes]

    def _lane(self, step: Step) -> str | None:
        lane = step.after.lane
        return None if step.delay_s > 0 or lane not in self._rings else lane

    def _keep(self, lane: str, most: int) -> None:
        """The first of those who want a slot have it."""
        places = [place for place, wanted in enumerate(self._lanes) if wanted == lane]
        for place in places[most:]:
            self._lanes[place] = None

    def fill(self, rows: Sequence[Transfer]) -> set[str]:
        """Hand the committed rows over, in the order of their moves; return who has work now."""
        handed: dict[str, list[Transfer]] = {}
        for row, lane in zip(rows, self._lanes, strict=True) if self._taken else ():
            if lane is not None:
                handed.setdefault(lane, []).append(row)
        for lane, some in handed.items():
            self._rings[lane].put(some, self._expires_s)
        self._taken = {}
        return set(handed)

    def free(self) -> None:
        for lane, taken in self._taken.items():
            self._rings[lane].free(taken)
        self._taken = {}
