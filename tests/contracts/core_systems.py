"""Benches of the trading core: in this process, and as a separate process."""

import asyncio
import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tests.contracts.bench_setup import ASSET, BenchSetup
from tests.contracts.fault_injection import Connect, Loss, LossyConnection
from tests.forked import Forked
from tests.trading_core.local_connection import connect_to
from tidegate.core import wire
from tidegate.core.answers import Answer
from tidegate.core.ports import System
from tidegate.core.transfer import Question
from tidegate.systems.trading import CoreCaller, KnownCore, TradingCoreClient, dial
from tidegate.trading_core.core import Core
from tidegate.trading_core.disk import RealDisk


class CoreBench(ABC):
    """The trading core through its client."""

    book, asset_id, in_order = "SPOT", ASSET, True

    def __init__(self, connect: Connect) -> None:
        self.connection = LossyConnection(connect)
        self.clients: list[TradingCoreClient] = []
        self.client = self._client()

    def _client(self) -> TradingCoreClient:
        async def known_core() -> KnownCore:
            return KnownCore("store", "here", frozenset({ASSET}))

        caller = CoreCaller(f"test {len(self.clients)}")
        self.clients.append(TradingCoreClient("core", self.connection.connect, caller, known_core))
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
        async with self._lost(Loss.ANSWERS):
            yield

    @asynccontextmanager
    async def _lost(self, loss: Loss) -> AsyncIterator[None]:
        self.connection.loss = loss
        self.connection.lost.clear()
        yield
        assert self.connection.lost.is_set(), f"{loss} were not lost"
        self.connection.loss = Loss.NOTHING

    @abstractmethod
    async def restart(self) -> None: ...

    @asynccontextmanager
    async def killed_after(self) -> AsyncIterator[None]:
        async with self._lost(Loss.ANSWERS):
            yield
        await self.restart()


class MemoryCoreBench(CoreBench):
    """The core's own code in this process, without sockets, as the simulator runs it."""

    def __init__(self, directory: Path) -> None:
        super().__init__(dial("unix:/nowhere"))
        self.directory = directory

    async def start(self) -> None:
        self.disk = RealDisk(self.directory)
        self.core = await Core.open(self.disk, bytes(range(16)), time.time)
        self.running = asyncio.ensure_future(self.core.run())
        self.connection.connect_to = connect_to(self.core)

    async def stop(self) -> None:
        self.core.stop()
        await self.running
        self.disk.unlock()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    @asynccontextmanager
    async def killed_before(self) -> AsyncIterator[None]:
        async with self._lost(Loss.QUESTIONS):
            yield
        await self.restart()

    @asynccontextmanager
    async def unreachable(self) -> AsyncIterator[None]:
        await self.stop()
        yield
        await self.start()


class CoreProcessBench(CoreBench):
    """The real process over a Unix socket. It is killed with a signal."""

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
        """The process is stopped with SIGSTOP, the question is sent, and the process is killed."""
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
async def core_in_memory(setup: BenchSetup) -> AsyncIterator[CoreBench]:
    bench = MemoryCoreBench(setup.directory)
    await bench.start()
    try:
        yield bench
    finally:
        await bench.close()
        await bench.stop()


@asynccontextmanager
async def core_process(setup: BenchSetup) -> AsyncIterator[CoreBench]:
    bench = CoreProcessBench(setup.directory)
    try:
        yield bench
    finally:
        await bench.close()
        bench.kill()
