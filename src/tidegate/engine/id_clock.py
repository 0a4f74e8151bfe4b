"""The time for new ids: the store's, carried on by our own clock for a short while.

To read the store's clock before each batch is a round trip. The same statement looks up which keys
are known, which can be left out where repeats are rare: a key that is taken fails the transaction,
and is looked up then. So a batch is looked up first only while repeats come in, or when the store's
clock was not read lately.

An id that is a few seconds off harms nothing. One below the store's floor is refused when it is
written, because the transaction reads the floor.
"""

from collections.abc import Callable

TRUST_S = 10.0  # For so long after the store's clock was read.
REPEATS_S = 1.0  # For so long after a known key was met, keys are looked up first.


class IdClock:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._read: tuple[int, float] | None = None  # The store's time, and ours when it was read.
        self._look_until_s: float | None = None

    def told(self, at_us: int) -> None:
        self._read = at_us, self._clock()

    def repeated(self) -> None:
        """A known key was met: more may follow."""
        self._look_until_s = self._clock() + REPEATS_S

    def forget(self) -> None:
        """An id was refused: the store's clock has to be read again."""
        self._read = None

    def now_us(self) -> int | None:
        """None: ask the store, and look the keys up."""
        if self._read is None:
            return None
        at_us, read_s = self._read
        now_s = self._clock()
        if self._look_until_s is not None and now_s < self._look_until_s:
            return None
        if not 0 <= now_s - read_s <= TRUST_S:
            return None
        return at_us + int((now_s - read_s) * 1_000_000)
