"""What can befall a desk: sessions that die, lines that lose what is said on them."""

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


class Dying(Generic[Tx]):
    """A local system whose session ends when everything is written and nothing committed."""

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


class Mute:
    """Who asks dies when the system has answered, so that nobody hears it."""

    def __init__(self, system: System) -> None:
        self._system = system
        self.name, self.reversible = system.name, system.reversible

    async def ask(self, questions: Sequence[Question]) -> Sequence[Answer]:
        await self._system.ask(questions)
        raise Unreachable("the asker died")


class Losing(Enum):
    NOTHING = "nothing"
    QUESTIONS = "questions"
    ANSWERS = "answers"


class Line:
    """The way to a core. What it loses also ends the connection on which it was said."""

    def __init__(self, connect: Connect) -> None:
        self.connect_to = connect
        self.losing = Losing.NOTHING
        self.lost = asyncio.Event()
        self._pumps: set[asyncio.Task[None]] = set()

    async def connect(self) -> Streams:
        reader, writer = await self.connect_to()
        assert isinstance(reader, asyncio.StreamReader)
        heard = asyncio.StreamReader()
        pump = asyncio.ensure_future(self._pump(reader, writer, heard))
        self._pumps.add(pump)
        pump.add_done_callback(self._pumps.discard)
        return heard, Mouth(self, writer)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: ByteWriter, heard: asyncio.StreamReader
    ) -> None:
        try:
            while chunk := await reader.read(CHUNK):
                if self.losing is Losing.ANSWERS:
                    self.lost.set()
                    break
                heard.feed_data(chunk)
        except wire.LOST:
            pass
        writer.close()
        heard.feed_eof()


class Mouth:
    """Our end of a line, as the client writes to it."""

    def __init__(self, line: Line, writer: ByteWriter) -> None:
        self._line, self._writer = line, writer

    def write(self, chunk: bytes, /) -> None:
        if self._line.losing is Losing.QUESTIONS:
            self._line.lost.set()
            self._writer.close()
        else:
            self._writer.write(chunk)

    async def drain(self) -> None:
        await self._writer.drain()

    def close(self) -> None:
        self._writer.close()

    async def wait_closed(self) -> None:
        await self._writer.wait_closed()
