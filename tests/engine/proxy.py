"""A proxy before PostgreSQL that can swallow the reply to a COMMIT, which has happened."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict, make_conninfo

CHUNK = 65_536
COMMIT = b"COMMIT\x00"  # As a statement and as its reply; COMMITTED, a state, is neither.


class Proxy:
    def __init__(self, server_socket: str) -> None:
        self.server_socket = server_socket
        self.swallow = 0  # How many of the next COMMITs get no reply.
        self.swallowed = 0
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
                there[1].write(chunk)
                if COMMIT in chunk and self.swallow:
                    # The server has been told; the client hears no more. The session behind
                    # goes on as if nobody had gone.
                    self.swallow -= 1
                    self.swallowed += 1
                    replies.cancel()
                    await asyncio.wait([replies])
                    writer.close()
                    await _drain(there[0])
                    break
        except (ConnectionError, asyncio.CancelledError):
            pass  # One of the two has gone, or the test is over.
        finally:
            writer.close()
            there[1].close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while chunk := await reader.read(CHUNK):
            writer.write(chunk)
    writer.close()


async def _drain(reader: asyncio.StreamReader) -> None:
    """Until the server has said that it is done."""
    with contextlib.suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(5):
            while chunk := await reader.read(CHUNK):
                if COMMIT in chunk:
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
