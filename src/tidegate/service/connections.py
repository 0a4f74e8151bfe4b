"""Connections that say nothing are closed: there are only so many, and they are for everybody."""

import asyncio
from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from tidegate.core.refusals import Refusal
from tidegate.service.problem import problem

MAX_CONNECTIONS = 2_000
CROWDED = "crowded"  # In the state of a request: it came over a connection too many.
HEADERS_S = 10.0  # From the first byte, or from connecting, to the end of a request's headers.


class Impatient(H11Protocol):
    """As it is, but it does not wait for ever for a request to begin."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            self.app_state = {**self.app_state, CROWDED: True}
        self._arm()

    def data_received(self, chunk: bytes, /) -> None:
        super().data_received(chunk)
        self._arm()

    def connection_lost(self, fault: Exception | None, /) -> None:
        self._disarm()
        super().connection_lost(fault)

    def _arm(self) -> None:
        if not self._waits():
            self._disarm()
        elif self._timer is None:
            self._timer = self.loop.call_later(HEADERS_S, self._give_up)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _waits(self) -> bool:
        """No request is being served: the next one has not begun, or is not here in full."""
        cycle = getattr(self, "cycle", None)  # Before the first request there is none.
        return cycle is None or bool(cycle.response_complete)

    def _give_up(self) -> None:
        self._timer = None
        if self._waits():
            self.transport.close()


class Uncrowded:
    """Answers whoever came over a connection too many with a problem, and lets them go."""

    def __init__(self, app: ASGIApp, new_id: Callable[[], str]) -> None:
        self._app, self._new_id = app, new_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope.get("state", {}).get(CROWDED):
            app = problem(Refusal.OVERLOADED, self._new_id(), headers={"Connection": "close"})
        await app(scope, receive, send)
