"""Connections that say nothing are closed: there are only so many, and they are for everybody."""

import asyncio
from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from tidegate.core.refusals import Refusal
from tidegate.service.problem import problem

MAX_CONNECTIONS = 2_000
CROWDED = "crowded"  # In the state of a request: it came over a connection too many.
HEADERS_S = 10.0  # From the first byte, or from connecting, to the end of a request's headers.
MAX_HEADERS = 32 * 1024


class Impatient(HttpToolsProtocol):
    """As it is, but it waits neither for ever for a request nor for headers without an end."""

    _timer: asyncio.TimerHandle | None = None
    _heading = 0  # Bytes that came before the end of the headers; nothing is read twice.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            self.app_state = {**self.app_state, CROWDED: True}
        self._arm()

    def data_received(self, chunk: bytes, /) -> None:
        self._heading += len(chunk)
        super().data_received(chunk)
        if self._heading > MAX_HEADERS:
            self.send_400_response("The headers do not end.")
        self._arm()

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._heading = 0

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._heading = 0

    def send_400_response(self, msg: str) -> None:
        """What is no request of HTTP has no id either; in all else it is a problem like others."""
        answer = problem(Refusal.INVALID_REQUEST, "none", msg, headers={"Connection": "close"})
        lines = [b"%s: %s\r\n" % header for header in answer.raw_headers]
        self.transport.write(b"".join([STATUS_LINE[400], *lines, b"\r\n", bytes(answer.body)]))
        self.transport.close()

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
