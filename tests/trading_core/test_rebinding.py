"""After a rebind no session of the old store or database changes anything, whatever it has sent."""

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import pytest

from tests.trading_core.disks import PowerLoss, SimDisk, SlowDisk
from tests.trading_core.questions import client, core_at, credit, greeted, of, recalling
from tests.trading_core.scenes import ANN, SMALL, UUID_A, opened, running, until
from tests.trading_core.scenes import credit as credit_of
from tidegate.core import wire
from tidegate.core.answers import Answer, Done, Unreachable
from tidegate.core.wire import AccountStatus, Binding, CoreEvent, CoreOutcome, FrameKind, Rebinding
from tidegate.systems.trading import (
    CoreCaller,
    CoreRefusesService,
    KnownCore,
    TradingCoreClient,
    dial,
)
from tidegate.trading_core.book import key_of
from tidegate.trading_core.core import Core, CoreStopped
from tidegate.trading_core.in_process import InProcessWriter, connect_to, pipe
from tidegate.trading_core.operation_memory import VERSION_BITS
from tidegate.trading_core.requests import BindingChanged
from tidegate.trading_core.server import OpenSessions
from tidegate.trading_core.session import converse

HERE, THERE = Binding("store", "here"), Binding("store", "there")


def test_a_connected_worker_of_the_old_database_moves_nothing_after_a_rebind(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        async with core_at(tmp_path) as core:
            old, new, operator = (
                of(core, "store", "here"),
                of(core, "store", "there"),
                of(core, "", ""),
            )
            assert isinstance((await old.ask([credit(1, 5)]))[0], Done)
            assert await operator.rebind("store", THERE) == THERE
            for _ in range(3):
                with pytest.raises(Unreachable):
                    await old.ask([credit(2, 5)])
            assert "MOVED" in (old.refusal or "")
            assert isinstance((await new.ask([credit(3, 5)]))[0], Done)
            assert await new.query([(UUID(int=2), 0)]) == [None]
            assert (await operator.totals()).sums == {("SPOT", 7): 10}
            for each in (old, new, operator):
                await each.close()

    asyncio.run(scene())


def test_an_idle_session_of_the_old_database_is_told_why_it_ends(tmp_path: Path) -> None:
    async def scene() -> None:
        async with core_at(tmp_path) as core:
            reader, writer = await greeted(connect_to(core), HERE)
            await of(core, "", "").rebind("store", THERE)
            async with asyncio.timeout(5):
                refused = await wire.receive(reader)
                assert (refused.kind, refused.request) == (FrameKind.REFUSED, 0)
                assert "REBOUND: " in wire.unpack_refusal(refused.body).message
                with pytest.raises(EOFError):
                    await wire.receive(reader)
            writer.close()

    asyncio.run(scene())


def test_a_follower_of_the_old_database_is_ended_by_a_rebind(tmp_path: Path) -> None:
    async def scene() -> None:
        async with core_at(tmp_path) as core:
            old, operator = of(core, "store", "here"), of(core, "", "")
            await old.ask([credit(1, 5)])
            follower, heard = old.follow(core.place.position), list[CoreEvent]()
            await anext(follower)

            async def follow_on() -> None:
                async for _, operations in follower:
                    heard.extend(operations)

            await operator.rebind("store", THERE)
            async with asyncio.timeout(5):
                with pytest.raises(Unreachable, match="REBOUND"):
                    await follow_on()
                assert not heard
                with pytest.raises(CoreRefusesService, match="MOVED"):
                    await anext(old.follow(0))

    asyncio.run(scene())


def test_a_rebind_that_changes_nothing_ends_nobody(tmp_path: Path) -> None:
    async def scene() -> None:
        async with core_at(tmp_path) as core:
            reader, writer = await greeted(connect_to(core), HERE)
            operator = of(core, "", "")
            assert await operator.rebind("store", HERE) == HERE
            assert await operator.rebind("another", THERE) == HERE
            writer.write(wire.frame(FrameKind.TOTALS, 1))
            assert (await wire.receive(reader)).kind == FrameKind.SUMMED
            await operator.close()

    asyncio.run(scene())


@pytest.mark.parametrize("rebind_first", [True, False])
def test_a_batch_that_was_queued_before_the_rebind_is_not_appended_after_it(
    tmp_path: Path, rebind_first: bool
) -> None:
    async def scene() -> None:
        async with slow_core(tmp_path) as (disk, core):
            old, operator = of(core, "store", "here"), of(core, "", "")
            await asyncio.gather(old.totals(), operator.totals())

            def rebind() -> asyncio.Task[Binding]:
                return asyncio.create_task(operator.rebind("store", THERE))

            def move(number: int) -> asyncio.Task[Sequence[Answer]]:
                return asyncio.create_task(old.ask([credit(number, 5)]))

            with disk.held():
                under_way = move(1)
                await until(lambda: disk.waiting > 0)
                early = rebind() if rebind_first else None
                await until(lambda: len(core._queue) == rebind_first)
                asking = move(2)
                await until(lambda: len(core._queue) == rebind_first + 1)
                rebinding = early or rebind()
                await until(lambda: len(core._queue) == 2)
            assert isinstance((await under_way)[0], Done)
            assert await rebinding == THERE
            if rebind_first:
                with pytest.raises(Unreachable, match="REBOUND"):
                    await asking
            else:
                assert isinstance((await asking)[0], Done)
            balances = [5 if rebind_first else 10]
            assert core.book.balances == balances
            await operator.close()
        async with core_at(tmp_path) as core:
            assert (core.book.balances, core.book.binding) == (balances, THERE)

    asyncio.run(scene())


def test_of_all_that_an_old_session_has_queued_nothing_is_recorded_behind_a_rebind(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        async with slow_core(tmp_path) as (disk, core):
            reader, writer = await greeted(connect_to(core), HERE)
            operator = of(core, "", "")
            await operator.totals()
            before = core.place.position
            requests = {
                FrameKind.ASK: wire.pack_operations([credit_of(9, 5)]),
                FrameKind.SET_STATUS: wire.STATUS.pack(ANN, AccountStatus.FROZEN),
                FrameKind.RETIRE: bytes(15) + b"\x09",
                FrameKind.ASSETS: wire.pack_assets([777]),
                FrameKind.SNAPSHOT: b"",
            }
            with disk.held():
                rebinding = asyncio.ensure_future(operator.rebind("store", THERE))
                await until(lambda: disk.waiting > 0)
                for number, (kind, body) in enumerate(requests.items(), start=1):
                    writer.write(wire.frame(kind, number, body))
                await until(lambda: len(core._queue) == len(requests))
            assert await rebinding == THERE
            assert (await wire.receive(reader)).kind == FrameKind.REFUSED
            assert core.place.position == before + 1
            assert 777 not in core.book.assets
            await operator.close()

    asyncio.run(scene())


def test_who_greets_while_the_core_is_rebound_is_refused_and_adds_no_assets(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        async with slow_core(tmp_path) as (disk, core):
            first = of(core, "store", "here")
            await first.totals()
            await first.close()

            async def with_a_new_asset() -> KnownCore:
                return KnownCore("store", "here", frozenset({777}))

            late = TradingCoreClient("core", connect_to(core), CoreCaller("late"), with_a_new_asset)
            operator = of(core, "", "")
            await operator.totals()
            with disk.held():
                rebinding = asyncio.ensure_future(operator.rebind("store", THERE))
                await until(lambda: disk.waiting > 0)
                greeting = asyncio.ensure_future(late.totals())
                await until(lambda: len(core._queue) == 1)
            assert await rebinding == THERE
            with pytest.raises(Unreachable, match="REBOUND"):
                await greeting
            assert 777 not in core.book.assets
            await operator.close()

    asyncio.run(scene())


def test_a_session_that_is_welcomed_while_the_core_is_rebound_is_ended(tmp_path: Path) -> None:
    async def scene() -> None:
        async with core_at(tmp_path) as core:
            (reader, writer), (there_reader, there_writer) = pipe()
            slow = SlowWriter(there_writer)
            session = asyncio.create_task(converse(core, there_reader, slow))
            hello = wire.Hello(wire.PROTOCOL, "store", "p", None, 0, "here")
            writer.write(wire.frame(FrameKind.HELLO, 0, wire.pack(hello)))
            assert (await wire.receive(reader)).kind == FrameKind.WELCOME
            operator = of(core, "", "")
            await operator.rebind("store", THERE)
            slow.gate.set()  # Only now is the welcome sent, as far as the session knows.
            async with asyncio.timeout(5):
                assert (await wire.receive(reader)).kind == FrameKind.REFUSED
                await session
            await operator.close()

    asyncio.run(scene())


class SlowWriter(InProcessWriter):
    """The core's end of a connection that is slow to take what is written."""

    def __init__(self, writer: wire.ByteWriter) -> None:
        assert isinstance(writer, InProcessWriter)
        super().__init__(writer._other, writer._line)
        self.gate = asyncio.Event()

    async def drain(self) -> None:
        await self.gate.wait()
        await super().drain()


def test_two_rebinds_at_once_are_ordered_and_only_the_last_database_is_served(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        elsewhere = Binding("store", "elsewhere")
        async with slow_core(tmp_path) as (disk, core):
            old = of(core, "store", "here")
            await old.totals()
            operators = [of(core, "", "") for _ in range(2)]
            with disk.held():
                under_way = asyncio.ensure_future(old.ask([credit(1, 5)]))
                await until(lambda: disk.waiting > 0)
                rebinds = []
                for operator, binding in zip(operators, (THERE, elsewhere), strict=True):
                    rebinds.append(asyncio.ensure_future(operator.rebind("store", binding)))
                    await until(lambda: len(core._queue) == len(rebinds))
            await under_way
            assert await asyncio.gather(*rebinds) == [THERE, elsewhere]
            with pytest.raises(CoreRefusesService, match="MOVED"):
                await of(core, "store", "there").totals()
            with pytest.raises(Unreachable):
                await old.totals()
            await of(core, "store", "elsewhere").totals()

    asyncio.run(scene())


def test_a_rebind_whose_reply_was_lost_is_durable_and_can_be_repeated(tmp_path: Path) -> None:
    async def scene() -> None:
        other = Binding("another", "there")
        async with slow_core(tmp_path) as (disk, core):
            old, operator = of(core, "store", "here"), of(core, "", "")
            await asyncio.gather(old.totals(), operator.totals())
            with disk.held():
                rebinding = asyncio.ensure_future(operator.rebind("store", other))
                await until(lambda: disk.waiting > 0)
                await operator.close()
            with pytest.raises(Unreachable):
                await rebinding
            await until(lambda: core.book.binding == other)
            with pytest.raises(Unreachable):
                await old.ask([credit(1, 5)])
            again = of(core, "", "")
            assert await again.rebind("store", other) == other
            await again.close()
        async with core_at(tmp_path) as core:
            assert core.book.binding == other
            assert core.book.balances == []

    asyncio.run(scene())


def test_under_load_the_log_has_no_operation_of_an_old_worker_behind_the_rebind(
    tmp_path: Path,
) -> None:
    """Over real sockets, with many requests of several workers on their way."""

    async def flood(worker: TradingCoreClient, numbers: Iterator[int]) -> int:
        """How many asks were answered before the worker was cut off."""
        answered = 0

        async def one() -> None:
            nonlocal answered
            while True:
                [answer] = await worker.ask([credit(next(numbers), 1)])
                assert isinstance(answer, Done)
                answered += 1

        found = await asyncio.gather(*(one() for _ in range(50)), return_exceptions=True)
        assert all(isinstance(each, Unreachable) for each in found), found
        return answered

    async def scene() -> None:
        async with core_at(tmp_path) as core:
            sessions, path = OpenSessions(core), tmp_path / "s"
            server = await asyncio.start_unix_server(sessions.begin, path)
            there = recalling(place="there")
            connect = dial(f"unix:{path}")
            workers = [client(connect) for _ in range(4)]
            numbers = itertools.count(1)
            floods = [asyncio.create_task(flood(worker, numbers)) for worker in workers]
            await until(lambda: core.place.position > 500)
            nobody = recalling(store="", place="")
            operator = TradingCoreClient("core", connect, CoreCaller("operator"), nobody)
            assert await operator.rebind("store", THERE) == THERE
            assert operator.mark is not None
            rebound_at = operator.mark.position
            answered = sum([await each for each in floods])
            # What one batch holds beside the rebind may be in front of it, and not behind it.
            assert core.place.position == rebound_at
            held = core.book.balances[0]
            assert answered <= held
            new = TradingCoreClient("core", connect, CoreCaller("new"), there)
            assert isinstance((await new.ask([credit(10**9, 1)]))[0], Done)
            assert core.book.balances == [held + 1]
            for each in (*workers, operator, new):
                await each.close()
            server.close()
            await sessions.end()

    asyncio.run(scene())


@pytest.mark.parametrize("survives", ["all", "synced", "some"])
def test_wherever_power_fails_no_operation_is_behind_the_rebind(survives: str) -> None:
    """The session's batch is queued right behind the rebind, at every call of the disk."""

    async def life(disk: SimDisk) -> bool:
        """Whether the rebind was acknowledged."""
        core = await opened(disk, UUID_A, SMALL)
        commits = asyncio.ensure_future(core.run())
        try:
            await core.submit(FrameKind.BIND, wire.pack(HERE))
            await core.submit(FrameKind.ASK, wire.pack_operations([credit_of(1, 5)]), HERE)
            rebinding = core.submit(
                FrameKind.REBIND, wire.pack(Rebinding("store", THERE)), Binding()
            )
            behind = core.submit(FrameKind.ASK, wire.pack_operations([credit_of(2, 5)]), HERE)
            await rebinding
            with pytest.raises(BindingChanged):
                await behind
            return True
        finally:
            core.stop()
            with contextlib.suppress(PowerLoss):
                await commits

    async def scene() -> None:
        dice = random.Random(1)
        whole = SimDisk()
        assert await life(whole)
        for dies_at in range(1, whole.calls + 2):
            disk = SimDisk(dies_at=dies_at)
            told = False
            with contextlib.suppress(PowerLoss, CoreStopped):
                told = await life(disk)
            image = disk.after_power_loss(dice if survives == "some" else None, survives == "all")
            async with running(SimDisk(image)) as core:
                assert core.book.answer(key_of(2 << VERSION_BITS)) == (CoreOutcome.NOTHING, 0)
                assert core.book.binding == THERE or not told

    asyncio.run(scene())


@asynccontextmanager
async def slow_core(directory: Path) -> AsyncIterator[tuple[SlowDisk, Core]]:
    """A core that already serves the store, on a disk that can be held."""
    disk = SlowDisk(directory)
    async with running(disk) as core:
        first = client(connect_to(core))
        await first.totals()
        await first.close()
        disk.waiting = 0
        yield disk, core
