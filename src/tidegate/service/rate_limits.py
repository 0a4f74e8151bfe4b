"""Limits on requests per second and owner: a token bucket that holds one second's requests."""

import struct
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from tidegate.service.shared_memory import RATES_AT, SIZE, SharedMemory

MAX_OWNERS = 100_000  # Beyond this the least recently used bucket is dropped.

# The table that processes share is a hash table: an owner's bucket is in one of its row's entries.
ENTRY = struct.Struct("=qdd")  # The owner, the tokens left, and the time of that count.
ENTRIES_PER_ROW = 8
ROW = ENTRY.size * ENTRIES_PER_ROW
ROWS = (SIZE - RATES_AT) // ROW
MULTIPLIER = 0x9E3779B97F4A7C15  # Multiplicative hashing: neighbouring owners get distant rows.


class RateLimit(Protocol):
    def admits(self, owner: int) -> bool:
        """Take a token from the owner's bucket. False if the bucket is empty."""


class OwnerRateLimit:
    """The buckets of one process."""

    def __init__(self, per_second: int | None, clock: Callable[[], float]) -> None:
        self._per_second = per_second
        self._clock = clock
        self._buckets: OrderedDict[int, tuple[float, float]] = OrderedDict()

    def admits(self, owner: int) -> bool:
        if self._per_second is None:
            return True
        now_s = self._clock()
        left, since_s = self._buckets.pop(owner, (float(self._per_second), now_s))
        left = refilled(left, now_s - since_s, self._per_second)
        admitted = left >= 1.0
        self._buckets[owner] = (left - admitted, now_s)
        if len(self._buckets) > MAX_OWNERS:
            self._buckets.popitem(last=False)
        return admitted


class SharedRateLimit:
    """The buckets of all processes of a port, in shared memory.

    If an owner's row is full, the owner replaces the least recently used entry in it.
    """

    def __init__(
        self, per_second: int | None, clock: Callable[[], float], memory: SharedMemory
    ) -> None:
        self._per_second = per_second
        self._clock = clock  # All processes must use the same clock, such as the system's.
        self._memory = memory

    def admits(self, owner: int) -> bool:
        if self._per_second is None:
            return True
        start = RATES_AT + (owner * MULTIPLIER % 2**64 * ROWS >> 64) * ROW
        with self._memory.locked(start, ROW) as held:
            # Without the lock the count is unknown: refuse.
            return held and self._take(start, owner, self._per_second)

    def _take(self, start: int, owner: int, per_second: int) -> bool:
        table, now_s = self._memory.bytes, self._clock()
        offsets = range(start, start + ROW, ENTRY.size)
        entries = {offset: ENTRY.unpack_from(table, offset) for offset in offsets}
        own = [offset for offset, entry in entries.items() if entry[0] == owner]
        offset = own[0] if own else min(offsets, key=lambda offset: entries[offset][2])
        _, left, since_s = entries[offset] if own else (owner, float(per_second), now_s)
        left = refilled(left, now_s - since_s, per_second)
        admitted = left >= 1.0
        ENTRY.pack_into(table, offset, owner, left - admitted, now_s)
        return admitted


def refilled(left: float, passed_s: float, per_second: int) -> float:
    return min(left + max(passed_s, 0.0) * per_second, float(per_second))
