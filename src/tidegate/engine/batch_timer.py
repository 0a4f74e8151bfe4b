"""Decides when a batch of requests is written: at once, or after more requests have arrived.

A batch costs about 1 ms in Python and 2 ms in PostgreSQL, however small it is. With few callers a
batch is written at once. With many callers it is written when two thirds of them wait in it, or
when it is large, or after a short time at the latest: some callers may be waiting for the end of a
transfer that is far away, and do not send another request until then.
"""

import asyncio

from tidegate.engine.wakeup import Wakeup

MANY_CALLERS, LARGE_BATCH = 32, 128
GATHER_S = 0.008


class BatchTimer:
    """Decides when the loops of the request queue take a batch."""

    def __init__(self, many_callers: int = MANY_CALLERS) -> None:
        self.callers = 0  # Callers that wait for a reply or for the end of a transfer.
        self._many_callers = many_callers
        self._wakeup = Wakeup()
        # Number of waiting requests that wakes a loop. More than one: a loop also has a timeout.
        self._enough = 1
        self._since_s: float | None = None

    def notify(self, waiting: int) -> None:
        """Requests have arrived: wake a loop if enough of them wait now."""
        if waiting >= self._enough:
            self._wakeup.set()

    def wake(self) -> None:
        self._wakeup.set()

    def clear(self) -> None:
        """Call this before checking the queue: a request that arrives later sets it again."""
        self._wakeup.clear()

    def batch_taken(self) -> None:
        """Requests that arrive from now on are gathered for the next batch."""
        self._enough, self._since_s = 1, None

    async def is_ready(self, waiting: int) -> bool:
        """Whether a batch may be taken. If not, check the queue again: it may have changed."""
        few = self.callers < self._many_callers
        enough = 1 if few else min(self.callers * 2 // 3, LARGE_BATCH)
        if not 0 < waiting < enough:
            return True
        now_s = asyncio.get_running_loop().time()
        if self._since_s is None:
            self._since_s = now_s
        left_s = self._since_s + GATHER_S - now_s
        if left_s > 0:
            self._enough = enough
            await self._wakeup.wait(left_s)
        return left_s <= 0

    async def wait(self) -> None:
        """Wait for a new request, or for one that was passed over and can be taken now."""
        self._enough = 1
        await self._wakeup.wait()
