"""The trading core on a bench: in this process, and as a process of its own."""

import asyncio
import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tests.contracts.surroundings import ASSET, Place
from tests.contracts.troubles import Connect, Line, Losing
from tests.forked import Forked
from tidegate.core import wire
from tidegate.core.answers import Answer
from tidegate.core.ports import System
from tidegate.core.transfer import Question
from tidegate.systems.trading import CoreCaller, KnownCore, TradingCoreClient, dial
from tidegate.trading_core.core import Core
from tidegate.trading_core.disk import RealDisk
from tidegate.trading_core.in_process import connect_to


class CoreDesk(ABC):
    """The trading core through its client."""

    book, asset_id, in_order = "SPOT", ASSET, True

    def __init__(self, connect: Connect) -> None:
        self.line = Line(connect)
        self.clients: list[TradingCoreClient] = []
        self.client = self._client()

    def _client(self) -> TradingCoreClient:
        async def recalled() -> KnownCore:
            return KnownCore("store", "here", frozenset({ASSET}))

        caller = CoreCaller(f"test {len(self.clients)}")
        self.clients.append(TradingCoreClient("core", self.line.connect, caller, recalled))
        return self.clients[-1]

    @property
    def system(self) -> System:
        return self.client

    async def another(self) -> System:
        return self._client()

    async def close(self) -> None:
        for client in self.clients:
            await client.close()

    async def ask(self, questions: Sequence[Question]) -> Sequence[Answer]:
        return await self.client.ask(questions)

    async def query(self, question: Question) -> Answer | None:
        return (await self.client.query([(question.transfer_id, question.version)]))[0]

    async def balance(self, owner: int) -> int:
        return (await self.client.balance(owner, self.book, ASSET)).amount

    async def set_status(self, owner: int, status: str) -> None:
        await self.client.set_status(owner, self.book, ASSET, wire.AccountStatus[status])

    async def freeze(self, owner: int) -> None:
        await self.set_status(owner, "FROZEN")

    async def disable(self, owner: int) -> None:
        await self.set_status(owner, "DISABLED")

    @asynccontextmanager
    async def reply_lost(self) -> AsyncIterator[None]:
        async with self._lost(Losing.ANSWERS):
            yield

    @asynccontextmanager
    async def _lost(self, what: Losing) -> AsyncIterator[None]:
        self.line.losing = what
        self.line.lost.clear()
        yield
        assert self.line.lost.is_set(), f"{what} were not lost"
        self.line.losing = Losing.NOTHING

    @abstractmethod
    async def restart(self) -> None: ...

    @asynccontextmanager
    async def killed_after(self) -> AsyncIterator[None]:
        async with self._lost(Losing.ANSWERS):
            yield
        await self.restart()


class CoreInMemory(CoreDesk):
    """The core's own code in this process, without sockets: as a simulator runs it."""

    def __init__(self, directory: Path) -> None:
        super().__init__(dial("unix:/nowhere"))
        self.directory = directory

    async def start(self) -> None:
        self.disk = RealDisk(self.directory)
        self.core = await Core.open(self.disk, bytes(range(16)), time.time)
        self.running = asyncio.ensure_future(self.core.run())
        self.line.connect_to = connect_to(self.core)

    async def stop(self) -> None:
        self.core.stop()
        await self.running
        self.disk.unlock()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    @asynccontextmanager
    async def killed_before(self) -> AsyncIterator[None]:
        async with self._lost(Losing.QUESTIONS):
            yield
        await self.restart()

    @asynccontextmanager
    async def unreachable(self) -> AsyncIterator[None]:
        await self.stop()
        yield
        await self.start()


class CoreProcess(CoreDesk):
    """The real process over a Unix socket, which is killed for real."""

    def __init__(self, directory: Path) -> None:
        address = f"unix:{directory / 'core.socket'}"
        super().__init__(dial(address))
        self.command = ["tidegate.trading_core", "--listen", address]
        self.command += ["--data", str(directory)]
        self.start()

    def start(self) -> None:
        self.child = Forked(self.command)
        assert self.child.stdout is not None
        assert self.child.stdout.readline().startswith("trading core ready")

    def kill(self) -> None:
        self.child.ended()

    async def restart(self) -> None:
        self.kill()
        self.start()

    @asynccontextmanager
    async def killed_before(self) -> AsyncIterator[None]:
        """It is stopped in its tracks, hears the question, and dies."""
        os.kill(self.child.pid, signal.SIGSTOP)
        killer = asyncio.ensure_future(self._kill_soon())
        yield
        await killer
        self.start()

    async def _kill_soon(self) -> None:
        await asyncio.sleep(0.1)
        self.kill()

    @asynccontextmanager
    async def unreachable(self) -> AsyncIterator[None]:
        self.kill()
        yield
        self.start()


@asynccontextmanager
async def core_in_memory(place: Place) -> AsyncIterator[CoreDesk]:
    desk = CoreInMemory(place.directory)
    await desk.start()
    try:
        yield desk
    finally:
        await desk.close()
        await desk.stop()


@asynccontextmanager
async def core_process(place: Place) -> AsyncIterator[CoreDesk]:
    desk = CoreProcess(place.directory)
    try:
        yield desk
    finally:
        await desk.close()
        desk.kill()
