"""A request and its reply, as HTTP has them."""

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl

import msgspec

BODY_S = 10.0  # A body that drips longer than this is not waited for.
JSON = "application/json"
CLOSE: Mapping[str, str] = {"Connection": "close"}
_encoder = msgspec.json.Encoder()


class HttpReply(NamedTuple):
    status: int
    body: bytes
    headers: Mapping[str, str]


def json_reply(
    body: object, status: int = 200, headers: Mapping[str, str] | None = None, kind: str = JSON
) -> HttpReply:
    said = {"Content-Type": kind} if headers is None else {"Content-Type": kind, **headers}
    return HttpReply(status, _encoder.encode(body), said)


class ClientGone(Exception):
    """The client left before all of its request was here."""


class HttpRequest:
    """One request. It is served as soon as its headers are here: the body may be on its way."""

    def __init__(
        self,
        method: str,
        path: str,
        query: bytes,
        headers: list[tuple[bytes, bytes]],
        wanted: Callable[[], None],
    ) -> None:
        self.method, self.path, self.query, self.headers = method, path, query, headers
        self.named: Mapping[str, str] = {}  # What stands in the path where its rule has a name.
        self.keeps = False  # Whether the connection is for more requests than this.
        self._wanted = wanted  # Is told when the body is waited for.
        self._first: dict[bytes, bytes] | None = None
        self._body = bytearray()
        self._whole = self._gone = False
        self._arrived: asyncio.Future[None] | None = None  # Of whoever waits for the body.

    def header(self, name: bytes) -> str | None:
        """By its name in lower case; the first, if there are several."""
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
        """All of it; or, as soon as it is longer than the limit, what is here."""
        if not self._whole and len(self._body) <= limit:
            async with asyncio.timeout(BODY_S):
                await self._rest(limit)
        return bytes(self._body)

    async def _rest(self, limit: int) -> None:
        self._wanted()
        while not self._whole and len(self._body) <= limit:
            if self._gone:
                raise ClientGone
            self._arrived = asyncio.get_running_loop().create_future()
            await self._arrived

    # What the connection tells.

    def grow(self, chunk: bytes) -> int:
        """More of the body came. How much is here that nobody has waited for?"""
        self._body += chunk
        self._wake()
        return len(self._body) if self._arrived is None else 0

    def end(self) -> None:
        self._whole = True
        self._wake()

    def leave(self) -> None:
        self._gone = True
        self._wake()

    def _wake(self) -> None:
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)
