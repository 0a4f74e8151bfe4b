"""HTTP requests and replies."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl

import msgspec

BODY_S = 10.0  # For the whole body to arrive.
JSON = "application/json"
CLOSE: Mapping[str, str] = {"Connection": "close"}
_encoder = msgspec.json.Encoder()


class HttpReply(NamedTuple):
    status: int
    body: bytes
    headers: Mapping[str, str]
    # Sent after the headers, each chunk as soon as it is there, instead of a body.
    stream: AsyncGenerator[bytes, None] | None = None


def json_reply(
    body: object, status: int = 200, headers: Mapping[str, str] | None = None, kind: str = JSON
) -> HttpReply:
    all_headers = {"Content-Type": kind} if headers is None else {"Content-Type": kind, **headers}
    return HttpReply(status, _encoder.encode(body), all_headers)


class ClientGone(Exception):
    """The client disconnected before its request was complete."""


class HttpRequest:
    """A request. It is served when its headers are complete: its body may still arrive."""

    def __init__(
        self,
        method: str,
        path: str,
        query: bytes,
        headers: list[tuple[bytes, bytes]],
        want_body: Callable[[], None],
    ) -> None:
        self.method, self.path, self.query, self.headers = method, path, query, headers
        self.named: Mapping[str, str] = {}  # The path's parameters, by the route's names.
        self.takes_chunks = False  # HTTP/1.0 does not know them.
        self.keep_alive = False  # Whether the connection stays open after the reply.
        self._want_body = want_body  # Called when the route waits for the body.
        self._first: dict[bytes, bytes] | None = None  # The first header of each name.
        self._body = bytearray()
        self._complete = self._disconnected = False
        self._arrival: asyncio.Future[None] | None = None  # Resolved when more of the body arrives.

    def header(self, name: bytes) -> str | None:
        """Return the first header of this name, which must be in lower case."""
        if self._first is None:
            self._first = dict(reversed(self.headers))
        value = self._first.get(name)
        return None if value is None else value.decode("latin-1")

    def headers_of(self, name: bytes) -> list[str]:
        return [value.decode("latin-1") for known, value in self.headers if known == name]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The names and values of the query."""
        return parse_qsl(self.query.decode("latin-1"), keep_blank_values=True)

    @property
    def parameters(self) -> dict[str, str]:
        return dict(self.pairs)

    async def body(self, limit: int) -> bytes:
        """Wait for the whole body. If it exceeds the limit, return what has arrived so far."""
        if not self._complete and len(self._body) <= limit:
            async with asyncio.timeout(BODY_S):
                await self._receive_rest(limit)
        return bytes(self._body)

    async def _receive_rest(self, limit: int) -> None:
        self._want_body()
        while not self._complete and len(self._body) <= limit:
            if self._disconnected:
                raise ClientGone
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival

    # Called by the connection.

    def grow(self, chunk: bytes) -> int:
        """Add a chunk of the body. Return how much has arrived before the route asked for it."""
        self._body += chunk
        self._wake()
        return len(self._body) if self._arrival is None else 0

    def end(self) -> None:
        self._complete = True
        self._wake()

    def disconnect(self) -> None:
        self._disconnected = True
        self._wake()

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)
