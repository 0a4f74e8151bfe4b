"""Connections to a core in the same process: the whole protocol, without sockets."""

import asyncio
from collections.abc import Awaitable, Callable

from tidegate.core.wire import Streams
from tidegate.trading_core.core import Core
from tidegate.trading_core.session import converse


class LocalConnection:
    """The state shared by both ends: whether the connection is open."""

    def __init__(self, readers: tuple[asyncio.StreamReader, asyncio.StreamReader]) -> None:
        self._readers = readers
        self.open = True

    def close(self) -> None:
        """Close both ends. Bytes that have arrived can still be read."""
        if self.open:
            self.open = False
            for reader in self._readers:
                reader.feed_eof()


class LocalWriter:
    """Feeds the reader of the other end, until either end is closed."""

    def __init__(self, peer: asyncio.StreamReader, connection: LocalConnection) -> None:
        self._peer, self._connection = peer, connection

    def write(self, chunk: bytes, /) -> None:
        if self._connection.open:
            self._peer.feed_data(chunk)

    async def drain(self) -> None:
        if not self._connection.open:
            raise ConnectionResetError("the pipe is closed")
        await asyncio.sleep(0)

    def close(self) -> None:
        self._connection.close()

    async def wait_closed(self) -> None:
        assert not self._connection.open


def pipe() -> tuple[Streams, Streams]:
    """The two ends of a connection in memory."""
    client_reader, core_reader = asyncio.StreamReader(), asyncio.StreamReader()
    connection = LocalConnection((client_reader, core_reader))
    client_end = client_reader, LocalWriter(core_reader, connection)
    core_end = core_reader, LocalWriter(client_reader, connection)
    return client_end, core_end


def connect_to(core: Core) -> Callable[[], Awaitable[Streams]]:
    """A function that opens client connections to a core in this process."""
    sessions: set[asyncio.Task[None]] = set()

    async def connect() -> Streams:
        if core.stopped.is_set():
            raise ConnectionRefusedError("the core has stopped")
        client_end, core_end = pipe()
        session = asyncio.ensure_future(converse(core, *core_end))
        sessions.add(session)
        session.add_done_callback(sessions.discard)
        return client_end

    return connect
