"""Hand-over inside a process: the happy path never waits for a scan of the table."""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

from tidegate.core.transfer import Move, Transfer

RING_SIZE = 10_000

T = TypeVar("T")


class Apart:
    """Whose accounts a transaction of this process locks, so that births keep out of its way.

    Two batches with an account in common wait for each other's commit inside the database, and
    all their other rows with them. Only for speed: what is right is seen to by the locks there.
    """

    def __init__(self, freed: Callable[[], None]) -> None:
        self._freed = freed
        self._busy: Counter[int] = Counter()
        self._passed_over = False

    def choose(self, waiting: "deque[T]", limit: int, owner: Callable[[T], int | None]) -> list[T]:
        """The first whose owners are in no batch. The others stay where they are, in their order.

        Not the whole queue is looked through: it may be all of one owner.
        """
        chosen: list[T] = []
        passed: list[T] = []
        while waiting and len(chosen) < limit and len(passed) < limit:
            item = waiting.popleft()
            (passed if owner(item) in self._busy else chosen).append(item)
        if passed:
            self._passed_over = True
            waiting.extendleft(reversed(passed))
        return chosen

    @contextmanager
    def locking(self, owners: Iterable[int | None]) -> Iterator[None]:
        """For as long as a transaction takes; never while somebody outside is asked."""
        locked = {owner for owner in owners if owner is not None}
        self._busy.update(locked)
        try:
            yield
        finally:
            for owner in locked:
                if self._busy[owner] == 1:
                    del self._busy[owner]
                else:
                    self._busy[owner] -= 1
            if self._passed_over:
                self._passed_over = False
                self._freed()


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

    def reserve(self, moves: Sequence[Move], *, halted: bool) -> list[bool]:
        """Which of the moves will be handed over: those rows are to be leased."""
        self._lanes = [None if halted else self._slot(move) for move in moves]
        return [lane is not None for lane in self._lanes]

    def _slot(self, move: Move) -> str | None:
        lane = move.after.lane
        if lane is None or lane not in self._rings or move.delay_s > 0:
            return None
        return lane if self._rings[lane].reserve() else None

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
