"""The connections of clients: one request is served at a time, and none is waited for for ever."""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Protocol
from urllib.parse import unquote

import httptools
import uvicorn
from uvicorn.server import ServerState

from tidegate.core.refusals import Refusal
from tidegate.service.http import CLOSE, ClientGone, HttpReply, HttpRequest
from tidegate.service.problem import problem

MAX_CONNECTIONS = 2_000  # There are only so many, and they are for everybody.
HEADERS_S = 10.0  # From the first byte, or from connecting, to the end of a request's headers.
KEEP_ALIVE_S = 30.0  # From an answer to the first byte of what is asked next.
WRITE_S = 30.0  # For the client to take what was written to it.
HEALTH_SHUTDOWN_S = 1  # For those who ask about health, when all else has ended.
SHUTDOWN_S = 12.0  # For the requests under way at the end of the server, and for their answers.
MAX_HEADERS = 32 * 1024
MAX_AHEAD = 64 * 1024  # Of a body that nobody has asked for yet.
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}

log = logging.getLogger("tidegate.http")


class RequestServer(Protocol):
    """What stands behind the connections."""

    async def __call__(self, request: HttpRequest, /) -> HttpReply: ...

    def turned_away(self) -> HttpReply: ...

    def failed(self) -> HttpReply: ...


def server_of(api: RequestServer, host: str = "127.0.0.1", port: int = 0) -> uvicorn.Server:
    """It listens, tells the date and ends in order. What is said on a connection is ours."""
    config = uvicorn.Config(
        api,
        host=host,
        port=port,
        http=Connection,
        interface="asgi3",  # Or rather what we speak: it is handed on as it is.
        proxy_headers=False,
        ws="none",
        lifespan="off",
        log_config=None,
        timeout_graceful_shutdown=math.ceil(SHUTDOWN_S),
    )
    return uvicorn.Server(config)


class HttpServer(uvicorn.Server):
    """It runs beside another, which takes the signals for both."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def health_server_of(api: RequestServer, host: str) -> uvicorn.Server:
    config = server_of(api, host).config
    config.timeout_graceful_shutdown = HEALTH_SHUTDOWN_S
    return HttpServer(config)


class Connection(asyncio.Protocol):
    _transport: asyncio.Transport
    _timer: asyncio.TimerHandle | None = None
    _timer_s = 0.0
    _due_s = 0.0  # When we give up waiting. It moves with every request; the timer does not.
    _expecting = False  # A request, and not only whether there will be one more.
    _heading = 0  # Bytes that came before the end of the headers; nothing is read twice.
    _arriving: HttpRequest | None = None
    _serving: HttpRequest | None = None
    _drained: asyncio.Future[None] | None = None  # While the client does not take what we write.
    _writing: asyncio.TimerHandle | None = None  # Cuts off a client that does not read.
    _paused = _crowded = _leaving = False

    def __init__(self, config: uvicorn.Config, server_state: ServerState, **_: object) -> None:
        self._api: RequestServer = config.loaded_app
        self._server = server_state
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        # What follows a request that is to be the last is nobody's, and no reason to refuse it.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        # Requests that came while another is served: no more than are read at once.
        self._waiting: deque[HttpRequest] = deque()

    # What the transport tells.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._server.connections.add(self)  # type: ignore[arg-type]
        self._crowded = len(self._server.connections) > MAX_CONNECTIONS
        self._expect()

    def data_received(self, chunk: bytes, /) -> None:
        self._heading += len(chunk)
        try:
            self._parser.feed_data(chunk)
        except httptools.HttpParserUpgrade:
            # We speak nothing else, and what follows is no HTTP any more.
            self._leaving = True
        except httptools.HttpParserError:
            self._refuse("Invalid HTTP request received.")
        if self._heading > MAX_HEADERS:
            self._refuse("The headers do not end.")
        if self._serving is None:
            self._expect()

    def connection_lost(self, _: Exception | None, /) -> None:
        self._server.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._writing is not None:
            self._writing.cancel()
        self._waiting.clear()
        if self._arriving is not None:
            self._arriving.leave()
        self.resume_writing()
        del self._parser  # Which knows us as we know it.

    def pause_writing(self) -> None:
        self._drained = self._loop.create_future()
        self._limit_write()

    def resume_writing(self) -> None:
        if self._writing is not None and not self._transport.is_closing():
            self._writing.cancel()
            self._writing = None
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._drained = None

    def shutdown(self) -> None:
        """The server is about to end: whatever is being served is the last."""
        if self._serving is None:
            self._close()
        else:
            self._leaving = True

    # What the parser tells.

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []

    def on_url(self, part: bytes) -> None:
        self._url += part

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._heading = 0
        url = httptools.parse_url(self._url)
        path = url.path.decode("ascii")
        request = HttpRequest(
            self._parser.get_method().decode("ascii"),
            unquote(path) if "%" in path else path,
            url.query or b"",
            self._headers,
            self._want_body,
        )
        self._headers = []  # What comes behind the body is no header of the request.
        lasting = self._parser.get_http_version() != "1.0"
        request.keeps = lasting and self._parser.should_keep_alive()
        self._arriving = request
        if self._serving is None:
            self._serve(request)
        else:
            self._pause()
            self._waiting.append(request)

    def on_body(self, chunk: bytes) -> None:
        self._heading = 0
        if self._arriving is not None and self._arriving.grow(chunk) > MAX_AHEAD:
            self._pause()

    def on_message_complete(self) -> None:
        if self._arriving is not None:
            self._arriving.end()
            self._arriving = None

    # What we make of it.

    def _serve(self, request: HttpRequest) -> None:
        self._serving = request
        task = self._loop.create_task(self._answer(request))
        self._server.tasks.add(task)
        task.add_done_callback(self._ended)

    async def _answer(self, request: HttpRequest) -> None:
        try:
            said = self._api.turned_away() if self._crowded else await self._api(request)
        except Exception:
            self._send(request, self._api.failed())
            raise
        if self._drained is not None:
            await self._drained
        self._send(request, said)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._server.tasks.discard(task)
        fault = None if task.cancelled() else task.exception()
        if fault is not None and not isinstance(fault, ClientGone):
            log.error("a request could not be answered", exc_info=fault)
        if fault is not None or task.cancelled():
            self._close()

    def _send(self, request: HttpRequest, said: HttpReply) -> None:
        if self._transport.is_closing():
            return
        headers = said.headers
        keeps = request.keeps and not self._leaving and headers.get("Connection") != "close"
        if not keeps:
            headers = {**headers, **CLOSE}
        head = head_of(said, headers, self._server.default_headers)
        # In one piece, so that it is one packet.
        self._transport.write(head if request.method == "HEAD" else head + said.body)
        self._server.total_requests += 1
        if keeps:
            self._go_on(request)
        else:
            self._close()

    def _go_on(self, answered: HttpRequest) -> None:
        self._serving = None
        if self._arriving is answered:
            self._arriving = None  # Whatever comes of its body is thrown away.
        if self._waiting:
            self._serve(self._waiting.popleft())
        else:
            self._resume()
            self._expecting = False
            self._give_up_after(KEEP_ALIVE_S)

    def _want_body(self) -> None:
        """The body of the request that is served is waited for, and is not here in full."""
        self._resume()
        request = self._serving
        if request is not None and (request.header(b"expect") or "").lower() == "100-continue":
            self._transport.write(CONTINUE)

    def _refuse(self, detail: str) -> None:
        """What is no request of HTTP has no id either; in all else it is a problem like others."""
        self._leaving = True
        if self._serving is not None and self._serving is not self._arriving:
            # The next answer belongs to the request that is served: this must not pass for it.
            self._pause()
        elif not self._transport.is_closing():
            said = problem(Refusal.INVALID_REQUEST, "none", detail, headers=CLOSE)
            self._transport.write(head_of(said, said.headers, ()) + said.body)
            self._close()

    def _close(self) -> None:
        """Close when all is written. A client that does not read must not hold it open."""
        self._transport.close()
        self._limit_write()

    def _limit_write(self) -> None:
        if self._writing is None:
            self._writing = self._loop.call_later(WRITE_S, self._transport.abort)

    def _pause(self) -> None:
        if not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            self._transport.resume_reading()

    def _expect(self) -> None:
        """A request has begun, or should: from the first byte on there is only so much time."""
        if not self._expecting:
            self._expecting = True
            self._give_up_after(HEADERS_S)

    def _give_up_after(self, seconds: float) -> None:
        self._due_s = self._loop.time() + seconds
        if self._timer is None or self._due_s < self._timer_s:
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = self._due_s
        self._timer = self._loop.call_at(self._timer_s, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._serving is not None:
            return  # There is a new timer when it is answered.
        if self._loop.time() < self._due_s:
            self._set_timer()
        else:
            self._close()


def head_of(
    said: HttpReply, headers: Mapping[str, str], more: Iterable[tuple[bytes, bytes]]
) -> bytes:
    lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
    text = "".join([*lines, f"Content-Length: {len(said.body)}\r\n\r\n"])
    # One more, and somebody else than we would have written a part of it.
    assert text.count("\n") == len(lines) + 2, "a header has several lines"
    return b"".join(
        [
            STATUS_LINES[said.status],
            *[b"%s: %s\r\n" % pair for pair in more],
            text.encode("latin-1"),
        ]
    )
