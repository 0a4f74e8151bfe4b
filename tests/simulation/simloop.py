"""Virtual time and seeded order for ordinary asyncio code: no sockets, no threads, no waiting."""

import asyncio
import random
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

START_S = 1_700_000_000.0
RESOLUTION_S = 1e-6


class JumpingSelector:
    """Instead of waiting for the next timer, moves the clock to it."""

    def __init__(self, loop: "SimLoop") -> None:
        self.loop = loop

    def select(self, timeout: float | None) -> tuple[()]:
        if timeout is None:
            raise RuntimeError("deadlock: nothing is ready and no timer is set")
        # Never less than the clock's resolution, as work takes time: a timer that fires a hair
        # too early and is set anew would otherwise be set for ever.
        self.loop.now_s += max(timeout, RESOLUTION_S)
        return ()

    def close(self) -> None: ...


class SimLoop(asyncio.BaseEventLoop):
    """One seed, one schedule: the order of what is ready is thrown with the seed's dice."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.now_s = START_S
        self.order = random.Random(seed)
        self._selector = JumpingSelector(self)
        self._clock_resolution = RESOLUTION_S

    def time(self) -> float:
        return self.now_s

    def _run_once(self) -> None:
        ready = list(self._ready)  # type: ignore[attr-defined]
        self.order.shuffle(ready)
        self._ready.clear()  # type: ignore[attr-defined]
        self._ready.extend(ready)  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]

    def _process_events(self, events: object) -> None: ...

    def _write_to_self(self) -> None: ...


def simulate(seed: int, main: Coroutine[Any, Any, T]) -> T:
    """Run to the end in virtual time. What is still pending then belongs to the dead."""
    loop = SimLoop(seed)
    try:
        return loop.run_until_complete(main)
    finally:
        abandoned = asyncio.all_tasks(loop)
        for task in abandoned:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*abandoned, return_exceptions=True))
        loop.close()
