"""A server that records its requests, and a client that sends exact bytes."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import NamedTuple, TypeAlias

from tidegate.service.connections import server_of
from tidegate.service.http import CLOSE, HttpReply, HttpRequest, json_reply

LIMIT = 100_000
HUGE = 40_000_000  # More than the kernel buffers for both ends of a socket.
CLOSED = b""


class Api:
    """Records the paths of requests. Some paths are slow, large or broken."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.paths: list[str] = []

    async def __call__(self, request: HttpRequest) -> HttpReply:
        self.paths.append(request.path)
        if request.path == "/slow":
            await self.release.wait()
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
        reply = {"path": request.path, "bytes": len(body), "headers": names}
        return json_reply(reply, 413 if len(body) > LIMIT else 200)

    def turned_away(self) -> HttpReply:
        return json_reply("crowded", 503, CLOSE)

    def failed(self) -> HttpReply:
        return json_reply("failed", 500, CLOSE)


class RawReply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def send(self, *chunks: bytes) -> None:
        self._writer.write(b"".join(chunks))

    async def reply(self, *, empty: bool = False) -> RawReply:
        head = await self.head()
        length = 0 if empty else int(head.headers.get("content-length", 0))
        return head._replace(body=await self._reader.readexactly(length))

    async def head(self) -> RawReply:
        head = (await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), 10)).decode()
        first, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        return RawReply(int(first.split()[1]), headers, b"")

    async def chunk(self) -> bytes:
        size = await asyncio.wait_for(self._reader.readuntil(b"\r\n"), 10)
        return (await self._reader.readexactly(int(size, 16) + 2)).removesuffix(b"\r\n")

    async def rest(self) -> bytes:
        return await asyncio.wait_for(self._reader.read(), 10)

    def close(self) -> None:
        self._writer.close()


class RunningServer(NamedTuple):
    api: Api
    connect: Callable[[], "asyncio.Future[Client]"]
    stop: Callable[[], None]


@asynccontextmanager
async def serving(api: Api | None = None) -> AsyncIterator[RunningServer]:
    api = Api() if api is None else api
    server = server_of(api)
    done = asyncio.ensure_future(server.serve())
    while not server.started:  # noqa: ASYNC110  Uvicorn has no event for this.
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    clients: list[Client] = []

    async def connect() -> Client:
        clients.append(Client(*await asyncio.open_connection("127.0.0.1", port)))
        return clients[-1]

    def stop() -> None:
        server.should_exit = True

    try:
        yield RunningServer(api, lambda: asyncio.ensure_future(connect()), stop)
    finally:
        for client in clients:
            client.close()
        stop()
        await asyncio.wait_for(done, 10)


Run: TypeAlias = Callable[[Callable[[], Coroutine[None, None, None]]], None]


def get(path: str, *headers: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: x", *headers, "", ""]).encode()


def post(length: int, *headers: str) -> bytes:
    lines = ["POST /post HTTP/1.1", "Host: x", f"Content-Length: {length}", *headers, "", ""]
    return "\r\n".join(lines).encode()
