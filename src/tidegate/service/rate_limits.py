"""Requests per second and owner: a bucket that fills steadily and holds one second's worth."""

import struct
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from tidegate.service.shared_memory import RATES_AT, SIZE, SharedMemory

MAX_OWNERS = 100_000  # Remembered at once; who has been quiet longest is forgotten first.

# The table that processes share: an owner has a row, and a place in it among a few others.
ENTRY = struct.Struct("=qdd")  # The owner, what was left, and since when.
PLACES = 8
ROW = ENTRY.size * PLACES
ROWS = (SIZE - RATES_AT) // ROW
SPREAD = 0x9E3779B97F4A7C15  # Odd: neighbouring owners get rows far apart.


class RateLimit(Protocol):
    def admits(self, owner: int) -> bool:
        """Take one from the owner's bucket, if there is one left."""


class OwnerRateLimit:
    def __init__(self, per_second: int | None, clock: Callable[[], float]) -> None:
        self._per_second = per_second
        self._clock = clock
        self._buckets: OrderedDict[int, tuple[float, float]] = OrderedDict()

    def admits(self, owner: int) -> bool:
        if self._per_second is None:
            return True
        now_s = self._clock()
        left, since_s = self._buckets.pop(owner, (float(self._per_second), now_s))
        left = filled(left, now_s - since_s, self._per_second)
        admitted = left >= 1.0
        self._buckets[owner] = (left - admitted, now_s)
        if len(self._buckets) > MAX_OWNERS:
            self._buckets.popitem(last=False)
        return admitted


class SharedRateLimit:
    """The same for all processes together: an owner has one bucket, whoever answers.

    An owner that finds its row full takes the place of the one that has been quiet longest.
    """

    def __init__(
        self, per_second: int | None, clock: Callable[[], float], memory: SharedMemory
    ) -> None:
        self._per_second = per_second
        self._clock = clock  # It must be the same for all processes, as the system's is.
        self._memory = memory

    def admits(self, owner: int) -> bool:
        if self._per_second is None:
            return True
        start = RATES_AT + (owner * SPREAD % 2**64 * ROWS >> 64) * ROW
        with self._memory.locked(start, ROW) as held:
            # Not knowing how many there were, the safe answer is «too many».
            return held and self._take(start, owner, self._per_second)

    def _take(self, start: int, owner: int, per_second: int) -> bool:
        table, now_s = self._memory.bytes, self._clock()
        offsets = range(start, start + ROW, ENTRY.size)
        entries = {offset: ENTRY.unpack_from(table, offset) for offset in offsets}
        ours = [offset for offset, entry in entries.items() if entry[0] == owner]
        offset = ours[0] if ours else min(offsets, key=lambda each: entries[each][2])
        _, left, since_s = entries[offset] if ours else (owner, float(per_second), now_s)
        left = filled(left, now_s - since_s, per_second)
        admitted = left >= 1.0
        ENTRY.pack_into(table, offset, owner, left - admitted, now_s)
        return admitted


def filled(left: float, passed_s: float, per_second: int) -> float:
    return min(left + max(passed_s, 0.0) * per_second, float(per_second))
