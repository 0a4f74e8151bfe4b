"""A proxy in front of PostgreSQL that can drop the reply to a COMMIT, or the COMMIT itself."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict, make_conninfo

CHUNK = 65_536
# In the statement and in its reply. The zero byte excludes COMMITTED, the state of a transfer.
COMMIT = b"COMMIT\x00"
READY = b"Z\x00\x00\x00\x05"  # The server is ready for the next query.


class Proxy:
    def __init__(self, server_socket: str) -> None:
        self.server_socket = server_socket
        self.mark = COMMIT  # The bytes of the messages that are counted below.
        self.swallow = 0  # How many of the next COMMITs get no reply.
        self.swallowed = 0
        self.drop = 0  # How many of the next COMMITs are not sent; their sessions end.
        # Called before the client notices that a reply or a COMMIT is lost.
        self.meanwhile: Callable[[], None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server = await asyncio.open_unix_connection(self.server_socket)
        except OSError:  # The server does not run.
            writer.close()
            return
        replies = asyncio.ensure_future(_pump(server[0], writer))
        self._tasks.add(replies)
        replies.add_done_callback(self._tasks.discard)
        try:
            while chunk := await reader.read(CHUNK):
                if self.mark in chunk and self.drop:
                    self.drop -= 1
                    # Stop the replies first: the client must not see the session end too early.
                    replies.cancel()
                    await asyncio.wait([replies])
                    server[1].close()
                    await server[1].wait_closed()
                    await self._run_meanwhile()
                    break
                server[1].write(chunk)
                if self.mark in chunk and self.swallow:
                    # The server gets the COMMIT; the client gets no more replies. The server's
                    # session goes on as if the client were still connected.
                    self.swallow -= 1
                    self.swallowed += 1
                    replies.cancel()
                    await asyncio.wait([replies])
                    await self._run_meanwhile()
                    writer.close()
                    await _drain(server[0], COMMIT if self.mark == COMMIT else READY)
                    break
        except (ConnectionError, asyncio.CancelledError):
            pass  # One of the connections was closed, or the test has ended.
        finally:
            writer.close()
            server[1].close()

    async def _run_meanwhile(self) -> None:
        if self.meanwhile is not None:
            await asyncio.to_thread(self.meanwhile)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while chunk := await reader.read(CHUNK):
            writer.write(chunk)
    writer.close()


async def _drain(reader: asyncio.StreamReader, done: bytes) -> None:
    """Read until the server reports that it is done."""
    with contextlib.suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(5):
            while chunk := await reader.read(CHUNK):
                if done in chunk:
                    return


@asynccontextmanager
async def proxied(database: str, directory: Path) -> AsyncIterator[tuple[str, Proxy]]:
    """Yield the address of the same database through the proxy, and the proxy."""
    parts = conninfo_to_dict(database)
    port = parts.get("port") or "5432"
    proxy = Proxy(f"{parts['host']}/.s.PGSQL.{port}")
    path = directory / f".s.PGSQL.{port}"
    server = await asyncio.start_unix_server(proxy.serve, path)
    try:
        yield make_conninfo(database, host=str(directory)), proxy
    finally:
        server.close()
