"""Questions as the engine asks them, and clients of a core in the same process."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from uuid import UUID

from tests.trading_core.disks import PausableDisk
from tests.trading_core.local_connection import connect_to
from tests.trading_core.scenes import ASSETS, TEST_LIMITS, UUID_A, open_core, running_core
from tidegate.core import wire
from tidegate.core.flow import Verb
from tidegate.core.kind import Party
from tidegate.core.transfer import Question
from tidegate.core.wire import Binding, FrameKind, HistoryMark, Streams
from tidegate.systems.trading import (
    CoreCaller,
    KnownCore,
    TradingCoreClient,
)
from tidegate.trading_core.core import Core, CoreLimits
from tidegate.trading_core.disk import RealDisk

Connect = Callable[[], Awaitable[Streams]]
SPOT = Party("core", "SPOT", 1)


def credit(number: int, amount: int, party: Party = SPOT) -> Question:
    return Question(UUID(int=number), 0, Verb.CREDIT, party, 7, amount)


def debit(number: int, amount: int, party: Party = SPOT) -> Question:
    return Question(UUID(int=number), 0, Verb.DEBIT, party, 7, amount)


def refund(number: int, amount: int, expect_done: bool = True) -> Question:
    return Question(
        UUID(int=number), 1, Verb.REFUND, SPOT, 7, amount, undoes=0, expect_done=expect_done
    )


def client(
    connect: Connect,
    mark: HistoryMark | None = None,
    timeout_s: float = 5.0,
    on_refused: Callable[[str], None] | None = None,
) -> TradingCoreClient:
    return TradingCoreClient(
        "core", connect, CoreCaller("worker", timeout_s), known_core_loader(mark), on_refused
    )


def known_core_loader(
    mark: HistoryMark | None = None, store: str = "store", place: str = "here"
) -> Callable[[], Awaitable[KnownCore]]:
    """A function that returns what a database has stored about its store and the core."""

    async def load() -> KnownCore:
        return KnownCore(store, place, ASSETS, mark)

    return load


def client_of(
    core: Core, store: str, place: str, on_refused: Callable[[str], None] | None = None
) -> TradingCoreClient:
    """A client of this store in this database; without a store, a client of an administrator."""
    load = known_core_loader(store=store, place=place)
    return TradingCoreClient("core", connect_to(core), CoreCaller("worker"), load, on_refused)


@contextlib.asynccontextmanager
async def core_at(
    directory: Path, limits: CoreLimits = TEST_LIMITS, uuid: bytes = UUID_A
) -> AsyncIterator[Core]:
    disk = RealDisk(directory)
    core = await open_core(disk, uuid, limits)
    commits = asyncio.ensure_future(core.run())
    try:
        yield core
    finally:
        core.stop()
        await commits
        disk.unlock()


@contextlib.asynccontextmanager
async def served(
    directory: Path, limits: CoreLimits = TEST_LIMITS
) -> AsyncIterator[tuple[Core, TradingCoreClient]]:
    async with core_at(directory, limits) as core:
        trading = client(connect_to(core))
        try:
            yield core, trading
        finally:
            await trading.close()


async def open_session(connect: Connect, binding: Binding) -> Streams:
    """Open a raw connection, and return it after the core has sent WELCOME."""
    reader, writer = await connect()
    hello = wire.Hello(wire.PROTOCOL, binding.store, "p", None, 0, binding.place, ())
    writer.write(wire.frame(FrameKind.HELLO, 0, wire.pack(hello)))
    assert (await wire.receive(reader)).kind == FrameKind.WELCOME
    return reader, writer


@contextlib.asynccontextmanager
async def slow_core(directory: Path) -> AsyncIterator[tuple[PausableDisk, Core]]:
    """A core that already serves the store, on a disk that can be paused."""
    disk = PausableDisk(directory)
    async with running_core(disk) as core:
        first = client(connect_to(core))
        await first.totals()
        await first.close()
        disk.waiting = 0
        yield disk, core
