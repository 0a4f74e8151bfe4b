"""When a batch leaves: with few callers at once, with many when it is worth its price.

A batch costs Python a millisecond and PostgreSQL two, however small it is. With many callers what
waits gathers, until it is two thirds of them or large; but for a moment only, because some of them
may wait for an end that is far away.
"""

import asyncio

from tidegate.engine.wakeup import Wakeup

MANY, LARGE = 32, 128
MOMENT_S = 0.008


class BatchTimer:
    """Tells those who take batches when to look."""

    def __init__(self, many: int = MANY) -> None:
        self.callers = 0  # Who waits for an answer, of whatever kind.
        self._many = many
        self._bell = Wakeup()
        self._enough = 1  # So many must wait for the bell to ring. More than one: there is a timer.
        self._since_s: float | None = None

    def arrived(self, waiting: int) -> None:
        if waiting >= self._enough:
            self._bell.ring()

    def hurry(self) -> None:
        self._bell.ring()

    def look(self) -> None:
        """Before looking: whoever arrives after the look rings again."""
        self._bell.silence()

    def left(self) -> None:
        """A batch has left. What comes now begins to gather anew."""
        self._enough, self._since_s = 1, None

    async def gathered(self, waiting: int) -> bool:
        """Whether a batch may leave. If not, look again: something may have changed meanwhile."""
        enough = 1 if self.callers < self._many else min(self.callers * 2 // 3, LARGE)
        if not 0 < waiting < enough:
            return True
        now_s = asyncio.get_running_loop().time()
        if self._since_s is None:
            self._since_s = now_s
        left_s = self._since_s + MOMENT_S - now_s
        if left_s > 0:
            self._enough = enough
            await self._bell.rest(left_s)
        return left_s <= 0

    async def rest(self) -> None:
        """Until somebody comes, or can be taken who could not before."""
        self._enough = 1
        await self._bell.rest()
