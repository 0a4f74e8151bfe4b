"""A bell that ends rests, for less than `asyncio.timeout` around an event: nothing is cancelled."""

import asyncio


class Wakeup:
    """Whoever rests hears it, also one that was about to."""

    def __init__(self) -> None:
        self._rung = False
        self._resting: dict[asyncio.Future[None], None] = {}

    def ring(self) -> None:
        self._rung = True
        for rest in self._resting:
            _end(rest)

    def silence(self) -> None:
        self._rung = False

    async def rest(self, seconds: float | None = None) -> None:
        """Until it rings, or the time is over."""
        if self._rung:
            return
        loop = asyncio.get_running_loop()
        rest = loop.create_future()
        timer = None if seconds is None else loop.call_later(seconds, _end, rest)
        self._resting[rest] = None
        try:
            await rest
        finally:
            if timer is not None:
                timer.cancel()
            del self._resting[rest]


def _end(rest: "asyncio.Future[None]") -> None:
    if not rest.done():
        rest.set_result(None)
