"""A proxy before PostgreSQL that can swallow the reply to a COMMIT, which has happened."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict, make_conninfo

CHUNK = 65_536
COMMIT = b"COMMIT\x00"  # As a statement and as its reply; COMMITTED, a state, is neither.
READY = b"Z\x00\x00\x00\x05"  # The server waits for the next message.


class Proxy:
    def __init__(self, server_socket: str) -> None:
        self.server_socket = server_socket
        self.mark = COMMIT  # What tells the messages by which the numbers below are counted.
        self.swallow = 0  # How many of the next COMMITs get no reply.
        self.swallowed = 0
        self.drop = 0  # How many of the next COMMITs are not even sent: their sessions end.
        self.meanwhile: Callable[[], None] | None = None  # Before the client learns of either.
        self._kept: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_unix_connection(self.server_socket)
        except OSError:  # There is no server just now.
            writer.close()
            return
        replies = asyncio.ensure_future(_pump(there[0], writer))
        self._kept.add(replies)
        replies.add_done_callback(self._kept.discard)
        try:
            while chunk := await reader.read(CHUNK):
                if self.mark in chunk and self.drop:
                    self.drop -= 1
                    # Or the end of the session behind would tell the client before its time.
                    replies.cancel()
                    await asyncio.wait([replies])
                    there[1].close()
                    await there[1].wait_closed()
                    await self._before_it_learns()
                    break
                there[1].write(chunk)
                if self.mark in chunk and self.swallow:
                    # The server has been told; the client hears no more. The session behind
                    # goes on as if nobody had gone.
                    self.swallow -= 1
                    self.swallowed += 1
                    replies.cancel()
                    await asyncio.wait([replies])
                    await self._before_it_learns()
                    writer.close()
                    await _drain(there[0], COMMIT if self.mark == COMMIT else READY)
                    break
        except (ConnectionError, asyncio.CancelledError):
            pass  # One of the two has gone, or the test is over.
        finally:
            writer.close()
            there[1].close()

    async def _before_it_learns(self) -> None:
        if self.meanwhile is not None:
            await asyncio.to_thread(self.meanwhile)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while chunk := await reader.read(CHUNK):
            writer.write(chunk)
    writer.close()


async def _drain(reader: asyncio.StreamReader, done: bytes) -> None:
    """Until the server has said that it is done."""
    with contextlib.suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(5):
            while chunk := await reader.read(CHUNK):
                if done in chunk:
                    return


@asynccontextmanager
async def proxied(database: str, directory: Path) -> AsyncIterator[tuple[str, Proxy]]:
    """The same database by another address."""
    parts = conninfo_to_dict(database)
    port = parts.get("port") or "5432"
    proxy = Proxy(f"{parts['host']}/.s.PGSQL.{port}")
    path = directory / f".s.PGSQL.{port}"
    server = await asyncio.start_unix_server(proxy.serve, path)
    try:
        yield make_conninfo(database, host=str(directory)), proxy
    finally:
        server.close()
