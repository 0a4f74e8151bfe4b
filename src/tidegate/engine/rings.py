"""Hand-over inside a process: the happy path never waits for a scan of the table."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Self, TypeVar

from tidegate.core.transfer import Moves, Step, Transfer

RING_SIZE = 10_000
EXPECTED_S = 0.2  # So long others keep out of the way of what an outside system is asked about.

T = TypeVar("T")


class Apart:
    """Whose accounts a transaction of this process locks, so that births keep out of its way.

    Two batches with an account in common wait for each other's commit inside the database, and
    all their other rows with them. Only for speed: what is right is seen to by the locks there.
    """

    def __init__(self, freed: Callable[[], None]) -> None:
        self._freed = freed
        self._busy: dict[int, int] = {}  # By owner, in how many batches.
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

    def has_waited(self, owner: int | None) -> bool:
        return owner in self._passed_over

    def take(self, owners: Iterable[int | None]) -> set[int]:
        taken = {owner for owner in owners if owner is not None}
        busy = self._busy
        for owner in taken:
            busy[owner] = busy.get(owner, 0) + 1
        return taken

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
    __slots__ = ("_apart", "_owners", "_timer")

    def __init__(self, apart: Apart) -> None:
        self._apart = apart
        self._owners: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        return self

    def __call__(self, owners: Iterable[int | None]) -> None:
        apart = self._apart
        self._owners |= apart.take(owner for owner in owners if not apart.has_waited(owner))
        if self._owners:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(EXPECTED_S, apart.free, self._owners)

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._apart.free(self._owners)


class LockedOwners:
    """Owners whose accounts a transaction locks."""

    __slots__ = ("_apart", "_owners")

    def __init__(self, apart: Apart, owners: Iterable[int | None]) -> None:
        self._apart, self._owners = apart, apart.take(owners)

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self._apart.free(self._owners)


class Ring:
    """Leased transfers on their way into one lane, at most RING_SIZE with what is reserved."""

    def __init__(self, size: int = RING_SIZE) -> None:
        self.size = size
        self.open = True
        self.reserved = 0
        self._entries: deque[tuple[float, Transfer]] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    def reserve(self) -> bool:
        """Take a slot before the row is leased; without one the row is left due for a scan."""
        if not self.open or len(self._entries) + self.reserved >= self.size:
            return False
        self.reserved += 1
        return True

    def free(self) -> None:
        assert self.reserved > 0, "a slot was freed twice"
        self.reserved -= 1

    def put(self, transfer: Transfer, expires_s: float) -> None:
        self.free()
        self._entries.append((expires_s, transfer))

    def pop(self, limit: int, now_s: float) -> list[Transfer]:
        """The oldest entries whose lease still holds; the others belong to whoever claims them."""
        popped: list[Transfer] = []
        while self._entries and len(popped) < limit:
            expires_s, transfer = self._entries.popleft()
            if expires_s > now_s:
                popped.append(transfer)
        return popped


class Slots:
    """The slots that one transaction has reserved, to be filled when it has committed."""

    def __init__(self, rings: Mapping[str, Ring], expires_s: float) -> None:
        self._rings = rings
        self._expires_s = expires_s
        self._lanes: list[str | None] = []  # Of each move, where it has a slot.

    def reserve(self, moves: Moves, *, halted: bool) -> list[bool]:
        """Which of the moves will be handed over: those rows are to be leased."""
        if halted:
            self._lanes = [None] * len(moves)
        else:
            rings = {step: self._ring(step) for step in set(moves.steps)}
            self._lanes = [
                step.after.lane if (ring := rings[step]) is not None and ring.reserve() else None
                for step in moves.steps
            ]
        return [lane is not None for lane in self._lanes]

    def _ring(self, step: Step) -> Ring | None:
        lane = step.after.lane
        return None if lane is None or step.delay_s > 0 else self._rings.get(lane)

    def fill(self, rows: Sequence[Transfer]) -> set[str]:
        """Hand the committed rows over, in the order of their moves; return who has work now."""
        lanes = set()
        for row, lane in zip(rows, self._lanes, strict=True):
            if lane is not None:
                self._rings[lane].put(row, self._expires_s)
                lanes.add(lane)
        return lanes

    def free(self) -> None:
        for lane in self._lanes:
            if lane is not None:
                self._rings[lane].free()
        self._lanes = []
