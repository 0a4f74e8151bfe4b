"""The time for new ids: the store's time, extrapolated by our own clock for a few seconds.

Reading the store's clock before each batch costs a round trip. The statement that reads it also
looks up which keys are known. The lookup can be left out while repeated keys are rare: reserving a
key that exists fails the transaction, and the keys are looked up then. So a batch is looked up
first only after a repeated key was seen, or when the store's clock was not read lately.

An id whose time is wrong by a few seconds is harmless. An id below the store's floor is refused
when it is written, because the transaction reads the floor.
"""

from collections.abc import Callable

TRUST_S = 10.0  # How long the store's time is extrapolated after it was read.
REPEATS_S = 1.0  # How long keys are looked up first after a repeated key was seen.


class IdClock:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # The store's time, and our clock when it was read.
        self._last_read: tuple[int, float] | None = None
        self._lookup_until_s: float | None = None

    def set_time(self, at_us: int) -> None:
        """Record the store's time, which was just read."""
        self._last_read = at_us, self._clock()

    def note_repeat(self) -> None:
        """A repeated key was seen. More are likely to follow, so look keys up for a while."""
        self._lookup_until_s = self._clock() + REPEATS_S

    def forget(self) -> None:
        """The store refused an id as too old: its clock must be read again."""
        self._last_read = None

    def now_us(self) -> int | None:
        """The time for new ids. None: read the store's clock and look the keys up."""
        if self._last_read is None:
            return None
        at_us, read_s = self._last_read
        now_s = self._clock()
        if self._lookup_until_s is not None and now_s < self._lookup_until_s:
            return None
        if not 0 <= now_s - read_s <= TRUST_S:
            return None
        return at_us + int((now_s - read_s) * 1_000_000)
