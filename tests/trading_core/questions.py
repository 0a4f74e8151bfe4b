"""Questions as the engine puts them, and a client to put them to a core in this process."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from uuid import UUID

from tests.trading_core.scenes import ASSETS, SMALL, UUID_A, opened
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
from tidegate.trading_core.in_process import connect_to

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
        "core", connect, CoreCaller("worker", timeout_s), recalling(mark), on_refused
    )


def recalling(
    mark: HistoryMark | None = None, store: str = "store", place: str = "here"
) -> Callable[[], Awaitable[KnownCore]]:
    """What a database says of itself and of the core."""

    async def recalled() -> KnownCore:
        return KnownCore(store, place, ASSETS, mark)

    return recalled


def of(
    core: Core, store: str, place: str, told: Callable[[str], None] | None = None
) -> TradingCoreClient:
    """A client of this store in this database; of an administrator if there is no store."""
    recalled = recalling(store=store, place=place)
    return TradingCoreClient("core", connect_to(core), CoreCaller("worker"), recalled, told)


@contextlib.asynccontextmanager
async def core_at(
    directory: Path, limits: CoreLimits = SMALL, uuid: bytes = UUID_A
) -> AsyncIterator[Core]:
    disk = RealDisk(directory)
    core = await opened(disk, uuid, limits)
    commits = asyncio.ensure_future(core.run())
    try:
        yield core
    finally:
        core.stop()
        await commits
        disk.unlock()


@contextlib.asynccontextmanager
async def served(
    directory: Path, limits: CoreLimits = SMALL
) -> AsyncIterator[tuple[Core, TradingCoreClient]]:
    async with core_at(directory, limits) as core:
        trading = client(connect_to(core))
        try:
            yield core, trading
        finally:
            await trading.close()


async def greeted(connect: Connect, binding: Binding) -> Streams:
    """A bare connection on which the core has said welcome."""
    reader, writer = await connect()
    hello = wire.Hello(wire.PROTOCOL, binding.store, "p", None, 0, binding.place, ())
    writer.write(wire.frame(FrameKind.HELLO, 0, wire.pack(hello)))
    assert (await wire.receive(reader)).kind == FrameKind.WELCOME
    return reader, writer
