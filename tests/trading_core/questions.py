"""Questions as the engine puts them, and a client to put them to a core in this process."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from uuid import UUID

from tests.trading_core.scenes import ASSETS, SMALL, UUID_A, opened
from tidegate.core import wire
from tidegate.core.flow import Verb
from tidegate.core.transfer import Party, Question
from tidegate.core.wire import Binding, Kind, Mark, Streams
from tidegate.systems.trading import (
    Caller,
    Recollection,
    Trading,
)
from tidegate.trading_core.core import Core, Limits
from tidegate.trading_core.disk import RealDisk
from tidegate.trading_core.pipe import connect_to

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
    mark: Mark | None = None,
    timeout_s: float = 5.0,
    on_refused: Callable[[str], None] | None = None,
) -> Trading:
    return Trading("core", connect, Caller("worker", timeout_s), recalling(mark), on_refused)


def recalling(
    mark: Mark | None = None, store: str = "store", place: str = "here"
) -> Callable[[], Awaitable[Recollection]]:
    """What a database says of itself and of the core."""

    async def recalled() -> Recollection:
        return Recollection(store, place, ASSETS, mark)

    return recalled


def of(core: Core, store: str, place: str, told: Callable[[str], None] | None = None) -> Trading:
    """A client of this store in this database; of an administrator if there is no store."""
    recalled = recalling(store=store, place=place)
    return Trading("core", connect_to(core), Caller("worker"), recalled, told)


@contextlib.asynccontextmanager
async def core_at(
    directory: Path, limits: Limits = SMALL, uuid: bytes = UUID_A
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
async def served(directory: Path, limits: Limits = SMALL) -> AsyncIterator[tuple[Core, Trading]]:
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
    writer.write(wire.frame(Kind.HELLO, 0, wire.pack(hello)))
    assert (await wire.receive(reader)).kind == Kind.WELCOME
    return reader, writer
