"""Requests per second and owner: a bucket that fills steadily and holds one second's worth."""

from collections import OrderedDict
from collections.abc import Callable

MAX_OWNERS = 100_000  # Remembered at once; who has been quiet longest is forgotten first.


class RequestRate:
    def __init__(self, per_second: int | None, clock: Callable[[], float]) -> None:
        self._per_second = per_second
        self._clock = clock
        self._buckets: OrderedDict[int, tuple[float, float]] = OrderedDict()

    def admits(self, owner: int) -> bool:
        """Take one from the owner's bucket, if there is one left."""
        if self._per_second is None:
            return True
        now_s = self._clock()
        left, since_s = self._buckets.pop(owner, (float(self._per_second), now_s))
        left = min(left + (now_s - since_s) * self._per_second, float(self._per_second))
        admitted = left >= 1.0
        self._buckets[owner] = (left - admitted, now_s)
        if len(self._buckets) > MAX_OWNERS:
            self._buckets.popitem(last=False)
        return admitted
