"""Faults for benches: sessions that end before a commit, connections that lose messages."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import Generic, TypeAlias, TypeVar

from tidegate.core import wire
from tidegate.core.account import Account
from tidegate.core.answers import Answer, Unreachable
from tidegate.core.ports import LocalSystem, System, Transaction
from tidegate.core.transfer import Question
from tidegate.core.wire import ByteWriter, Streams

CHUNK = 65_536

Connect: TypeAlias = Callable[[], Awaitable[Streams]]
Tx = TypeVar("Tx", bound=Transaction)


class DyingSession(Generic[Tx]):
    """A local system whose session ends after all writes and before the commit."""

    def __init__(self, system: LocalSystem[Tx], die: Callable[[Tx], Awaitable[object]]) -> None:
        self._system, self._die = system, die
        self.name, self.reversible = system.name, system.reversible

    async def lock(
        self, tx: Tx, accounts: Sequence[Account], next_: Sequence[Question] = ()
    ) -> None:
        await self._system.lock(tx, accounts, next_)

    async def ask(self, tx: Tx, questions: Sequence[Question]) -> Sequence[Answer]:
        answers = await self._system.ask(tx, questions)
        await self._die(tx)
        return answers


class DyingCaller:
    """A system whose caller dies after the system has answered, so that the answer is lost."""

    def __init__(self, system: System) -> None:
        self._system = system
        self.name, self.reversible = system.name, system.reversible

    async def ask(self, questions: Sequence[Question]) -> Sequence[Answer]:
        await self._system.ask(questions)
        raise Unreachable("the caller died")


class Loss(Enum):
    NOTHING = "nothing"
    QUESTIONS = "questions"
    ANSWERS = "answers"


class LossyConnection:
    """A connection to a core that can lose messages. A lost message also closes the connection."""

    def __init__(self, connect: Connect) -> None:
        self.connect_to = connect
        self.loss = Loss.NOTHING
        self.lost = asyncio.Event()
        self._pumps: set[asyncio.Task[None]] = set()

    async def connect(self) -> Streams:
        reader, writer = await self.connect_to()
        assert isinstance(reader, asyncio.StreamReader)
        received = asyncio.StreamReader()
        pump = asyncio.ensure_future(self._pump(reader, writer, received))
        self._pumps.add(pump)
        pump.add_done_callback(self._pumps.discard)
        return received, LossyWriter(self, writer)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: ByteWriter, received: asyncio.StreamReader
    ) -> None:
        try:
            while chunk := await reader.read(CHUNK):
                if self.loss is Loss.ANSWERS:
                    self.lost.set()
                    break
                received.feed_data(chunk)
        except wire.LOST:
            pass
        writer.close()
        received.feed_eof()


class LossyWriter:
    """The client's end of a lossy connection."""

    def __init__(self, connection: LossyConnection, writer: ByteWriter) -> None:
        self._connection, self._writer = connection, writer

    def write(self, chunk: bytes, /) -> None:
        if self._connection.loss is Loss.QUESTIONS:
            self._connection.lost.set()
            self._writer.close()
        else:
            self._writer.write(chunk)

    async def drain(self) -> None:
        await self._writer.drain()

    def close(self) -> None:
        self._writer.close()

    async def wait_closed(self) -> None:
        await self._writer.wait_closed()
