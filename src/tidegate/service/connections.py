"""HTTP connections: each serves one request at a time, and every wait on a client has a limit."""

import asyncio
import logging
import math
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from http import HTTPStatus
from typing import Protocol
from urllib.parse import unquote

import httptools
import uvicorn
from uvicorn.server import ServerState

from tidegate.core.refusals import Refusal
from tidegate.service.http import CLOSE, ClientGone, HttpReply, HttpRequest
from tidegate.service.problem import problem

MAX_CONNECTIONS = 2_000  # Per process. Requests on further connections are refused.
HEADERS_S = 10.0  # From connecting, or from a request's first byte, to the end of its headers.
KEEP_ALIVE_S = 30.0  # From a reply to the first byte of the next request.
WRITE_S = 30.0  # For the client to read what was written to it.
HEALTH_SHUTDOWN_S = 1  # The health server stops last; it waits this long for its requests.
SHUTDOWN_S = 12.0  # The API waits this long for running requests and their replies.
MAX_HEADERS = 32 * 1024
MAX_AHEAD = 64 * 1024  # Bytes of a body that are read before the route asks for the body.
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}

log = logging.getLogger("tidegate.http")


class RequestServer(Protocol):
    """The application: it answers requests, also those that are refused or have failed."""

    async def __call__(self, request: HttpRequest, /) -> HttpReply: ...

    def turned_away(self) -> HttpReply: ...

    def failed(self) -> HttpReply: ...


def server_of(api: RequestServer, host: str = "127.0.0.1", port: int = 0) -> uvicorn.Server:
    """Uvicorn listens, adds the Date header and shuts down; `Connection` speaks HTTP."""
    config = uvicorn.Config(
        api,
        host=host,
        port=port,
        http=Connection,
        interface="asgi3",  # Not ASGI, but this setting passes the application on unchanged.
        proxy_headers=False,
        ws="none",
        lifespan="off",
        log_config=None,
        timeout_graceful_shutdown=math.ceil(SHUTDOWN_S),
    )
    return uvicorn.Server(config)


class HttpServer(uvicorn.Server):
    """A second server in the process. It leaves the signals to the first one."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def health_server_of(api: RequestServer, host: str) -> uvicorn.Server:
    config = server_of(api, host).config
    config.timeout_graceful_shutdown = HEALTH_SHUTDOWN_S
    return HttpServer(config)


class Connection(asyncio.Protocol):
    """HTTP/1.1 on one connection: one request is served at a time, further ones wait."""

    _transport: asyncio.Transport
    _timer: asyncio.TimerHandle | None = None
    _timer_s = 0.0
    _deadline_s = 0.0  # When to stop waiting. Each request moves it; the timer follows lazily.
    _expecting = False  # True from a request's first byte on, while its headers are awaited.
    _header_bytes = 0  # Bytes received since the last complete headers or chunk of a body.
    _receiving: HttpRequest | None = None  # The request whose body is still being received.
    _serving: HttpRequest | None = None
    _streaming: "asyncio.Task[None] | None" = None  # The task of a reply that is a stream.
    _drained: asyncio.Future[None] | None = None  # Set while the client does not read.
    _write_timer: asyncio.TimerHandle | None = None  # Cuts off a client that does not read.
    _paused = _over_limit = _closing = False

    def __init__(self, config: uvicorn.Config, server_state: ServerState, **_: object) -> None:
        self._api: RequestServer = config.loaded_app
        self._server = server_state
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        # Bytes after a request with "Connection: close" are ignored, not an error.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        # Requests received while another is served: at most those of one read.
        self._waiting: deque[HttpRequest] = deque()

    # Called by the transport.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._server.connections.add(self)  # type: ignore[arg-type]
        self._over_limit = len(self._server.connections) > MAX_CONNECTIONS
        self._expect()

    def data_received(self, chunk: bytes, /) -> None:
        self._header_bytes += len(chunk)
        try:
            self._parser.feed_data(chunk)
        except httptools.HttpParserUpgrade:
            # No other protocol is offered, and the bytes that follow are not HTTP.
            self._closing = True
        except httptools.HttpParserError:
            self._refuse("Invalid HTTP request received.")
        if self._header_bytes > MAX_HEADERS:
            self._refuse(f"The headers are longer than {MAX_HEADERS} bytes.")
        if self._serving is None:
            self._expect()

    def connection_lost(self, _: Exception | None, /) -> None:
        self._server.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._write_timer is not None:
            self._write_timer.cancel()
        self._waiting.clear()
        if self._receiving is not None:
            self._receiving.disconnect()
        self.resume_writing()
        if self._streaming is not None:
            self._streaming.cancel()
        del self._parser  # It refers back to this object: break the cycle.

    def pause_writing(self) -> None:
        self._drained = self._loop.create_future()
        self._limit_write()

    def resume_writing(self) -> None:
        if self._write_timer is not None and not self._transport.is_closing():
            self._write_timer.cancel()
            self._write_timer = None
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._drained = None

    def shutdown(self) -> None:
        """The server is shutting down: the current request is the last."""
        if self._serving is None:
            self._close()
        else:
            self._closing = True
            if self._streaming is not None:
                self._streaming.cancel()  # It might go on for ever.

    # Called by the parser.

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []

    def on_url(self, part: bytes) -> None:
        self._url += part

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._header_bytes = 0
        url = httptools.parse_url(self._url)
        path = url.path.decode("ascii")
        request = HttpRequest(
            self._parser.get_method().decode("ascii"),
            unquote(path) if "%" in path else path,
            url.query or b"",
            self._headers,
            self._want_body,
        )
        self._headers = []  # Trailers after the body are not headers of the request.
        persistent = self._parser.get_http_version() != "1.0"
        request.takes_chunks = persistent
        request.keep_alive = persistent and self._parser.should_keep_alive()
        self._receiving = request
        if self._serving is None:
            self._serve(request)
        else:
            self._pause()
            self._waiting.append(request)

    def on_body(self, chunk: bytes) -> None:
        self._header_bytes = 0
        if self._receiving is not None and self._receiving.grow(chunk) > MAX_AHEAD:
            self._pause()

    def on_message_complete(self) -> None:
        if self._receiving is not None:
            self._receiving.end()
            self._receiving = None

    def _serve(self, request: HttpRequest) -> None:
        self._serving = request
        task = self._loop.create_task(self._answer(request))
        self._server.tasks.add(task)
        task.add_done_callback(self._ended)

    async def _answer(self, request: HttpRequest) -> None:
        try:
            reply = self._api.turned_away() if self._over_limit else await self._api(request)
        except Exception:
            self._send(request, self._api.failed())
            raise
        if self._drained is not None:
            await self._drained
        if reply.stream is None or request.method == "HEAD":
            self._send(request, reply)
        elif self._closing or self._transport.is_closing():
            await reply.stream.aclose()  # Nothing would end it later: see `_send_stream`.
            self._close()
        else:
            self._streaming = asyncio.current_task()
            await self._send_stream(request, reply, reply.stream)

    async def _send_stream(
        self, request: HttpRequest, reply: HttpReply, stream: AsyncGenerator[bytes, None]
    ) -> None:
        """Send each chunk when it is there. The connection ends with the stream.

        A stream that fails ends without its last chunk, so that the client notices. It is cancelled
        when the client disconnects, when it does not read, and when the server shuts down.
        """
        async with aclosing(stream):
            framed = request.takes_chunks  # Else only the end of the connection ends the reply.
            framing = {"Transfer-Encoding": "chunked"} if framed else {}
            headers = {**reply.headers, **framing, **CLOSE}
            self._transport.write(head_of(reply, headers, self._server.default_headers))
            self._server.total_requests += 1
            async for chunk in stream:
                if chunk:
                    size = len(chunk)
                    self._transport.write(b"%x\r\n%b\r\n" % (size, chunk) if framed else chunk)
                if self._drained is not None:
                    await self._drained
            if framed:
                self._transport.write(b"0\r\n\r\n")
        self._close()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._server.tasks.discard(task)
        fault = None if task.cancelled() else task.exception()
        if fault is not None and not isinstance(fault, ClientGone):
            log.error("request_failed", exc_info=fault)
        if fault is not None or task.cancelled():
            self._close()

    def _send(self, request: HttpRequest, reply: HttpReply) -> None:
        if self._transport.is_closing():
            return
        headers = reply.headers
        keep_alive = (
            request.keep_alive and not self._closing and headers.get("Connection") != "close"
        )
        if not keep_alive:
            headers = {**headers, **CLOSE}
        head = head_of(reply, headers, self._server.default_headers)
        # One write, so that a short reply is one packet.
        self._transport.write(head if request.method == "HEAD" else head + reply.body)
        self._server.total_requests += 1
        if keep_alive:
            self._serve_next(request)
        else:
            self._close()

    def _serve_next(self, answered: HttpRequest) -> None:
        self._serving = None
        if self._receiving is answered:
            self._receiving = None  # The rest of its body is discarded.
        if self._waiting:
            self._serve(self._waiting.popleft())
        else:
            self._resume()
            self._expecting = False
            self._set_deadline(KEEP_ALIVE_S)

    def _want_body(self) -> None:
        """The route waits for the rest of the body: read on."""
        self._resume()
        request = self._serving
        if request is not None and (request.header(b"expect") or "").lower() == "100-continue":
            self._transport.write(CONTINUE)

    def _refuse(self, detail: str) -> None:
        """Refuse bytes that are not valid HTTP. The problem has no request id."""
        self._closing = True
        if self._serving is not None and self._serving is not self._receiving:
            # The client would take this reply for that of the request being served: send none.
            self._pause()
        elif not self._transport.is_closing():
            reply = problem(Refusal.INVALID_REQUEST, "none", detail, headers=CLOSE)
            self._transport.write(head_of(reply, reply.headers, ()) + reply.body)
            self._close()

    def _close(self) -> None:
        """Close after the last byte is written. A client that does not read is cut off."""
        self._transport.close()
        self._limit_write()

    def _limit_write(self) -> None:
        if self._write_timer is None:
            self._write_timer = self._loop.call_later(WRITE_S, self._transport.abort)

    def _pause(self) -> None:
        if not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            self._transport.resume_reading()

    def _expect(self) -> None:
        """Limit the time for the headers, from connecting or from the request's first byte."""
        if not self._expecting:
            self._expecting = True
            self._set_deadline(HEADERS_S)

    def _set_deadline(self, seconds: float) -> None:
        self._deadline_s = self._loop.time() + seconds
        if self._timer is None or self._deadline_s < self._timer_s:
            self._start_timer()

    def _start_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = self._deadline_s
        self._timer = self._loop.call_at(self._timer_s, self._check_deadline)

    def _check_deadline(self) -> None:
        self._timer = None
        if self._serving is not None:
            return  # The reply sets a new deadline.
        if self._loop.time() < self._deadline_s:
            self._start_timer()
        else:
            self._close()


def head_of(
    reply: HttpReply, headers: Mapping[str, str], defaults: Iterable[tuple[bytes, bytes]]
) -> bytes:
    lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
    if reply.stream is None:
        lines.append(f"Content-Length: {len(reply.body)}\r\n")
    text = "".join([*lines, "\r\n"])
    # A line break in a header's value would let a client inject headers.
    assert text.count("\n") == len(lines) + 1, "a header contains a line break"
    return b"".join(
        [
            STATUS_LINES[reply.status],
            *[b"%s: %s\r\n" % pair for pair in defaults],
            text.encode("latin-1"),
        ]
    )
