"""A connection to a core in the same process: the whole protocol, without sockets."""

import asyncio
from collections.abc import Awaitable, Callable

from tidegate.core.wire import Streams
from tidegate.trading_core.core import Core
from tidegate.trading_core.session import converse


class InProcessConnection:
    """What the two ends share: whether it is still open."""

    def __init__(self, readers: tuple[asyncio.StreamReader, asyncio.StreamReader]) -> None:
        self._readers = readers
        self.open = True

    def close(self) -> None:
        """What has arrived can still be read; then comes the end."""
        if self.open:
            self.open = False
            for reader in self._readers:
                reader.feed_eof()


class InProcessWriter:
    """Whatever is written here is read at the other end, until either end closes."""

    def __init__(self, other: asyncio.StreamReader, line: InProcessConnection) -> None:
        self._other, self._line = other, line

    def write(self, chunk: bytes, /) -> None:
        if self._line.open:
            self._other.feed_data(chunk)

    async def drain(self) -> None:
        if not self._line.open:
            raise ConnectionResetError("the pipe is closed")
        await asyncio.sleep(0)

    def close(self) -> None:
        self._line.close()

    async def wait_closed(self) -> None:
        assert not self._line.open


def pipe() -> tuple[Streams, Streams]:
    """The two ends of a connection in memory."""
    here, there = asyncio.StreamReader(), asyncio.StreamReader()
    line = InProcessConnection((here, there))
    return (here, InProcessWriter(there, line)), (there, InProcessWriter(here, line))


def connect_to(core: Core) -> Callable[[], Awaitable[Streams]]:
    """What a client needs to reach a core that runs in this process."""
    sessions: set[asyncio.Task[None]] = set()

    async def connect() -> Streams:
        if core.stopped.is_set():
            raise ConnectionRefusedError("the core has stopped")
        ours, theirs = pipe()
        session = asyncio.ensure_future(converse(core, *theirs))
        sessions.add(session)
        session.add_done_callback(sessions.discard)
        return ours

    return connect
