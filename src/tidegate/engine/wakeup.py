"""An event with a timeout per wait, cheaper than `asyncio.timeout` around an event."""

import asyncio


class Wakeup:
    """Wakes every waiter when it is set. It stays set until it is cleared.

    A timeout resolves the waiter's future. Nothing is cancelled, which is why it is cheap.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._waiters: dict[asyncio.Future[None], None] = {}

    def set(self) -> None:
        self._is_set = True
        for waiter in self._waiters:
            _resolve(waiter)

    def clear(self) -> None:
        self._is_set = False

    async def wait(self, seconds: float | None = None) -> None:
        """Return when it is set, at once if it is set already, or after the timeout."""
        if self._is_set:
            return
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        timer = None if seconds is None else loop.call_later(seconds, _resolve, waiter)
        self._waiters[waiter] = None
        try:
            await waiter
        finally:
            if timer is not None:
                timer.cancel()
            del self._waiters[waiter]


def _resolve(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
