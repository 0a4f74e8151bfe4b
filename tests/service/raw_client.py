"""A server that tells what it was asked, and a client that says exactly what it is told to."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import NamedTuple, TypeAlias

from tidegate.service.connections import server_of
from tidegate.service.http import CLOSE, HttpReply, HttpRequest, json_reply

LIMIT = 100_000
HUGE = 40_000_000  # More than the kernel keeps for a socket and for its other end.
CLOSED = b""


class Api:
    """Tells what it was asked; some paths are slow, large or broken."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.asked: list[str] = []

    async def __call__(self, request: HttpRequest) -> HttpReply:
        self.asked.append(request.path)
        if request.path == "/slow":
            await self.go_on.wait()
        if request.path == "/bug":
            raise ZeroDivisionError("by design")
        if request.path == "/large":
            return HttpReply(200, b"x" * 1_000_000, {"Content-Type": "text/plain"})
        if request.path == "/huge":
            return HttpReply(200, b"x" * HUGE, {"Content-Type": "text/plain"})
        if request.path == "/closed":
            return json_reply("no")
        try:
            body = await request.body(LIMIT)
        except TimeoutError:
            return json_reply("late", 400)
        names = [name.decode() for name, _ in request.headers]
        said = {"path": request.path, "bytes": len(body), "headers": names}
        return json_reply(said, 413 if len(body) > LIMIT else 200)

    def turned_away(self) -> HttpReply:
        return json_reply("crowded", 503, CLOSE)

    def failed(self) -> HttpReply:
        return json_reply("failed", 500, CLOSE)


class Said(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def send(self, *pieces: bytes) -> None:
        self._writer.write(b"".join(pieces))

    async def reply(self, *, empty: bool = False) -> Said:
        head = (await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), 10)).decode()
        first, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        length = 0 if empty else int(headers.get("content-length", 0))
        return Said(int(first.split()[1]), headers, await self._reader.readexactly(length))

    async def rest(self) -> bytes:
        return await asyncio.wait_for(self._reader.read(), 10)

    def leave(self) -> None:
        self._writer.close()


class Scene(NamedTuple):
    api: Api
    connect: Callable[[], "asyncio.Future[Client]"]
    stop: Callable[[], None]


@asynccontextmanager
async def serving() -> AsyncIterator[Scene]:
    api = Api()
    server = server_of(api)
    done = asyncio.ensure_future(server.serve())
    while not server.started:  # noqa: ASYNC110  It has no event to wait for.
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    clients: list[Client] = []

    async def connect() -> Client:
        clients.append(Client(*await asyncio.open_connection("127.0.0.1", port)))
        return clients[-1]

    def stop() -> None:
        server.should_exit = True

    try:
        yield Scene(api, lambda: asyncio.ensure_future(connect()), stop)
    finally:
        for client in clients:
            client.leave()
        stop()
        await asyncio.wait_for(done, 10)


Play: TypeAlias = Callable[[Callable[[], Coroutine[None, None, None]]], None]


def get(path: str, *headers: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: x", *headers, "", ""]).encode()


def post(length: int, *headers: str) -> bytes:
    lines = ["POST /post HTTP/1.1", "Host: x", f"Content-Length: {length}", *headers, "", ""]
    return "\r\n".join(lines).encode()
