"""After a rebind, no session of the old store or database changes anything."""

import asyncio
import contextlib
import itertools
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from uuid import UUID

import pytest

from tests.trading_core.disks import PowerLoss, SimDisk
from tests.trading_core.local_connection import LocalWriter, connect_to, pipe
from tests.trading_core.questions import (
    client,
    client_of,
    core_at,
    credit,
    known_core_loader,
    open_session,
    slow_core,
)
from tests.trading_core.scenes import ANN, TEST_LIMITS, UUID_A, open_core, running_core, until
from tests.trading_core.scenes import credit as credit_of
from tidegate.core import wire
from tidegate.core.answers import Answer, Done, Unreachable
from tidegate.core.wire import (
    AccountStatus,
    Binding,
    CoreEvent,
    CoreOutcome,
    FrameKind,
    Rebinding,
)
from tidegate.systems.trading import (
    CoreCaller,
    CoreRefusesService,
    KnownCore,
    TradingCoreClient,
    dial,
)
from tidegate.trading_core.book import key_of
from tidegate.trading_core.core import CoreStopped
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
            old, new = client_of(core, "store", "here"), client_of(core, "store", "there")
            operator = client_of(core, "", "")
            assert isinstance((await old.ask([credit(1, 5)]))[0], Done)
            assert await operator.rebind("store", THERE) == THERE
            for _ in range(3):
                with pytest.raises(Unreachable):
                    await old.ask([credit(2, 5)])
            assert "MOVED" in (old.refusal or "")
            assert isinstance((await new.ask([credit(3, 5)]))[0], Done)
            assert await new.query([(UUID(int=2), 0)]) == [None]
            assert (await operator.totals()).sums == {("SPOT", 7): 10}
            for trading in (old, new, operator):
                await trading.close()

    asyncio.run(scene())


def test_an_idle_session_of_the_old_database_ends_with_a_reason(tmp_path: Path) -> None:
    async def scene() -> None:
        async with core_at(tmp_path) as core:
            reader, writer = await open_session(connect_to(core), HERE)
            await client_of(core, "", "").rebind("store", THERE)
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
            old, operator = client_of(core, "store", "here"), client_of(core, "", "")
            await old.ask([credit(1, 5)])
            follower, events = old.follow(core.log_position.position), list[CoreEvent]()
            await anext(follower)

            async def follow_on() -> None:
                async for _, operations in follower:
                    events.extend(operations)

            await operator.rebind("store", THERE)
            async with asyncio.timeout(5):
                with pytest.raises(Unreachable, match="REBOUND"):
                    await follow_on()
                assert not events
                with pytest.raises(CoreRefusesService, match="MOVED"):
                    await anext(old.follow(0))

    asyncio.run(scene())


def test_a_rebind_that_changes_nothing_ends_no_session(tmp_path: Path) -> None:
    async def scene() -> None:
        async with core_at(tmp_path) as core:
            reader, writer = await open_session(connect_to(core), HERE)
            operator = client_of(core, "", "")
            assert await operator.rebind("store", HERE) == HERE
            assert await operator.rebind("another", THERE) == HERE
            writer.write(wire.frame(FrameKind.TOTALS, 1))
            assert (await wire.receive(reader)).kind == FrameKind.SUMMED
            await operator.close()

    asyncio.run(scene())


@pytest.mark.parametrize("rebind_first", [True, False])
def test_a_batch_queued_before_the_rebind_is_not_appended_after_it(
    tmp_path: Path, rebind_first: bool
) -> None:
    async def scene() -> None:
        async with slow_core(tmp_path) as (disk, core):
            old, operator = client_of(core, "store", "here"), client_of(core, "", "")
            await asyncio.gather(old.totals(), operator.totals())

            def rebind() -> asyncio.Task[Binding]:
                return asyncio.create_task(operator.rebind("store", THERE))

            def move(number: int) -> asyncio.Task[Sequence[Answer]]:
                return asyncio.create_task(old.ask([credit(number, 5)]))

            with disk.paused():
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
            assert core.book.balances == (balances := [5 if rebind_first else 10])
            await operator.close()
        async with core_at(tmp_path) as core:
            assert (core.book.balances, core.book.binding) == (balances, THERE)

    asyncio.run(scene())


def test_nothing_that_an_old_session_queued_is_recorded_after_a_rebind(tmp_path: Path) -> None:
    async def scene() -> None:
        async with slow_core(tmp_path) as (disk, core):
            reader, writer = await open_session(connect_to(core), HERE)
            operator = client_of(core, "", "")
            await operator.totals()
            before = core.log_position.position
            requests = {
                FrameKind.ASK: wire.pack_operations([credit_of(9, 5)]),
                FrameKind.SET_STATUS: wire.STATUS.pack(ANN, AccountStatus.FROZEN),
                FrameKind.RETIRE: bytes(15) + b"\x09",
                FrameKind.ASSETS: wire.pack_assets([777]),
                FrameKind.SNAPSHOT: b"",
            }
            with disk.paused():
                rebinding = asyncio.ensure_future(operator.rebind("store", THERE))
                await until(lambda: disk.waiting > 0)
                for number, (kind, body) in enumerate(requests.items(), start=1):
                    writer.write(wire.frame(kind, number, body))
                await until(lambda: len(core._queue) == len(requests))
            assert await rebinding == THERE
            assert (await wire.receive(reader)).kind == FrameKind.REFUSED
            assert core.log_position.position == before + 1
            assert 777 not in core.book.assets
            await operator.close()

    asyncio.run(scene())


def test_a_client_that_connects_during_a_rebind_is_refused_and_adds_no_assets(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        async with slow_core(tmp_path) as (disk, core):
            first = client_of(core, "store", "here")
            await first.totals()
            await first.close()

            async def load() -> KnownCore:
                return KnownCore("store", "here", frozenset({777}))

            late = TradingCoreClient("core", connect_to(core), CoreCaller("late"), load)
            operator = client_of(core, "", "")
            await operator.totals()
            with disk.paused():
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


def test_a_session_that_is_welcomed_during_a_rebind_is_ended(tmp_path: Path) -> None:
    async def scene() -> None:
        async with core_at(tmp_path) as core:
            (reader, writer), (core_reader, core_writer) = pipe()
            slow = SlowWriter(core_writer)
            session = asyncio.create_task(converse(core, core_reader, slow))
            hello = wire.Hello(wire.PROTOCOL, "store", "p", None, 0, "here")
            writer.write(wire.frame(FrameKind.HELLO, 0, wire.pack(hello)))
            assert (await wire.receive(reader)).kind == FrameKind.WELCOME
            operator = client_of(core, "", "")
            await operator.rebind("store", THERE)
            slow.gate.set()  # Only now does the session continue after its WELCOME.
            async with asyncio.timeout(5):
                assert (await wire.receive(reader)).kind == FrameKind.REFUSED
                await session
            await operator.close()

    asyncio.run(scene())


class SlowWriter(LocalWriter):
    """The core's end of a connection that is slow to take what is written."""

    def __init__(self, writer: wire.ByteWriter) -> None:
        assert isinstance(writer, LocalWriter)
        super().__init__(writer._peer, writer._connection)
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
            old = client_of(core, "store", "here")
            await old.totals()
            operators = [client_of(core, "", "") for _ in range(2)]
            with disk.paused():
                under_way = asyncio.ensure_future(old.ask([credit(1, 5)]))
                await until(lambda: disk.waiting > 0)
                rebinds = []
                for operator, binding in zip(operators, (THERE, elsewhere), strict=True):
                    rebinds.append(asyncio.ensure_future(operator.rebind("store", binding)))
                    await until(lambda: len(core._queue) == len(rebinds))
            await under_way
            assert await asyncio.gather(*rebinds) == [THERE, elsewhere]
            with pytest.raises(CoreRefusesService, match="MOVED"):
                await client_of(core, "store", "there").totals()
            with pytest.raises(Unreachable):
                await old.totals()
            await client_of(core, "store", "elsewhere").totals()

    asyncio.run(scene())


def test_a_rebind_whose_reply_was_lost_is_durable_and_can_be_repeated(tmp_path: Path) -> None:
    async def scene() -> None:
        other = Binding("another", "there")
        async with slow_core(tmp_path) as (disk, core):
            old, operator = client_of(core, "store", "here"), client_of(core, "", "")
            await asyncio.gather(old.totals(), operator.totals())
            with disk.paused():
                rebinding = asyncio.ensure_future(operator.rebind("store", other))
                await until(lambda: disk.waiting > 0)
                await operator.close()
            with pytest.raises(Unreachable):
                await rebinding
            await until(lambda: core.book.binding == other)
            with pytest.raises(Unreachable):
                await old.ask([credit(1, 5)])
            again = client_of(core, "", "")
            assert await again.rebind("store", other) == other
            await again.close()
        async with core_at(tmp_path) as core:
            assert core.book.binding == other
            assert core.book.balances == []

    asyncio.run(scene())


def test_under_load_the_log_has_no_operation_of_an_old_worker_after_the_rebind(
    tmp_path: Path,
) -> None:
    """Over real sockets, with many concurrent requests of several workers."""

    async def flood(worker: TradingCoreClient, numbers: Iterator[int]) -> int:
        """The number of asks that were answered before the worker was disconnected."""
        answered = 0

        async def ask_repeatedly() -> None:
            nonlocal answered
            while True:
                [answer] = await worker.ask([credit(next(numbers), 1)])
                assert isinstance(answer, Done)
                answered += 1

        asks = [ask_repeatedly() for _ in range(50)]
        errors = await asyncio.gather(*asks, return_exceptions=True)
        assert all(isinstance(error, Unreachable) for error in errors), errors
        return answered

    async def scene() -> None:
        async with core_at(tmp_path) as core:
            sessions, path = OpenSessions(core), tmp_path / "s"
            server = await asyncio.start_unix_server(sessions.begin, path)
            there = known_core_loader(place="there")
            connect = dial(f"unix:{path}")
            workers = [client(connect) for _ in range(4)]
            numbers = itertools.count(1)
            floods = [asyncio.create_task(flood(worker, numbers)) for worker in workers]
            await until(lambda: core.log_position.position > 500)
            no_store = known_core_loader(store="", place="")
            operator = TradingCoreClient("core", connect, CoreCaller("operator"), no_store)
            assert await operator.rebind("store", THERE) == THERE
            assert operator.mark is not None
            rebound_at = operator.mark.position
            answered = sum([await task for task in floods])
            # Operations in the batch of the rebind may be recorded before it, but not after it.
            assert core.log_position.position == rebound_at
            balance = core.book.balances[0]
            assert answered <= balance
            new = TradingCoreClient("core", connect, CoreCaller("new"), there)
            assert isinstance((await new.ask([credit(10**9, 1)]))[0], Done)
            assert core.book.balances == [balance + 1]
            for trading in (*workers, operator, new):
                await trading.close()
            server.close()
            await sessions.end()

    asyncio.run(scene())


@pytest.mark.parametrize("survives", ["all", "synced", "some"])
def test_after_a_power_loss_at_any_call_no_operation_follows_the_rebind(survives: str) -> None:
    """The session's batch is queued directly after the rebind."""

    async def rebind_and_ask(disk: SimDisk) -> bool:
        """Whether the rebind was acknowledged."""
        core = await open_core(disk, UUID_A, TEST_LIMITS)
        commits = asyncio.ensure_future(core.run())
        try:
            await core.submit(FrameKind.BIND, wire.pack(HERE))
            await core.submit(FrameKind.ASK, wire.pack_operations([credit_of(1, 5)]), HERE)
            rebinding = core.submit(
                FrameKind.REBIND, wire.pack(Rebinding("store", THERE)), Binding()
            )
            late = core.submit(FrameKind.ASK, wire.pack_operations([credit_of(2, 5)]), HERE)
            await rebinding
            with pytest.raises(BindingChanged):
                await late
            return True
        finally:
            core.stop()
            with contextlib.suppress(PowerLoss):
                await commits

    async def scene() -> None:
        dice = random.Random(1)
        reference = SimDisk()
        assert await rebind_and_ask(reference)
        for fails_at in range(1, reference.calls + 2):
            disk = SimDisk(fails_at=fails_at)
            acknowledged = False
            with contextlib.suppress(PowerLoss, CoreStopped):
                acknowledged = await rebind_and_ask(disk)
            image = disk.after_power_loss(dice if survives == "some" else None, survives == "all")
            async with running_core(SimDisk(image)) as core:
                assert core.book.answer(key_of(2 << VERSION_BITS)) == (CoreOutcome.NOTHING, 0)
                assert core.book.binding == THERE or not acknowledged

    asyncio.run(scene())
