"""A session without a store may read and rebind. It may not move money or open accounts."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import UUID

import pytest

from tests.trading_core.local_connection import connect_to
from tests.trading_core.questions import client_of, core_at, credit, open_session
from tests.trading_core.scenes import credit as credit_of
from tidegate.core import wire
from tidegate.core.answers import Done, Unreachable
from tidegate.core.wire import AccountStatus, Binding, FrameKind, pack_operations
from tidegate.systems.trading import CoreCaller, KnownCore, TradingCoreClient

HERE, THERE = Binding("store", "here"), Binding("store", "there")


@pytest.mark.parametrize("request_name", ["ask", "retire", "set_status", "add_assets"])
def test_a_session_without_a_store_is_refused_and_changes_nothing(
    tmp_path: Path, request_name: str
) -> None:
    async def scene() -> None:
        async with core_at(tmp_path) as core:
            worker, operator = client_of(core, "store", "here"), client_of(core, "", "")
            await worker.ask([credit(1, 5)])
            before = core.log_position
            requests: dict[str, Callable[[], Awaitable[object]]] = {
                "ask": lambda: operator.ask([credit(2, 5)]),
                "retire": lambda: operator.retire(UUID(int=9)),
                "set_status": lambda: operator.set_status(1, "SPOT", 7, AccountStatus.FROZEN),
                "add_assets": lambda: operator._call(FrameKind.ASSETS, wire.pack_assets([777])),
            }
            await operator.totals()
            with pytest.raises(Unreachable, match=r"NOT_ALLOWED: .* without a store"):
                await requests[request_name]()
            assert core.log_position == before
            assert operator.refusal is None
            await worker.close()
            await operator.close()

    asyncio.run(scene())


def test_a_declined_request_ends_neither_the_session_nor_other_requests(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        async with core_at(tmp_path) as core:
            reader, writer = await open_session(connect_to(core), Binding())
            body = pack_operations([credit_of(9, 5)])
            writer.write(wire.frame(FrameKind.TOTALS, 1) + wire.frame(FrameKind.ASK, 2, body))
            writer.write(wire.frame(FrameKind.TOTALS, 3))
            replies = [await wire.receive(reader) for _ in range(3)]
            assert [(r.kind, r.request) for r in replies] == [
                (FrameKind.SUMMED, 1),
                (FrameKind.REFUSED, 2),
                (FrameKind.SUMMED, 3),
            ]

    asyncio.run(scene())


def test_an_administrator_reads_follows_and_takes_snapshots(tmp_path: Path) -> None:
    async def scene() -> None:
        async with core_at(tmp_path) as core:
            worker, operator = client_of(core, "store", "here"), client_of(core, "", "")
            await worker.ask([credit(1, 5)])
            assert (await operator.balance(1, "SPOT", 7)).amount == 5
            assert (await operator.totals()).sums == {("SPOT", 7): 5}
            assert isinstance((await operator.query([(UUID(int=1), 0)]))[0], Done)
            _, [event] = await anext(operator.follow(1))
            assert event.delta == 5
            await operator.snapshot()
            await worker.close()
            await operator.close()

    asyncio.run(scene())


def test_assets_in_a_hello_without_a_store_are_ignored(tmp_path: Path) -> None:
    async def scene() -> None:
        async with core_at(tmp_path) as core:
            before = core.book.assets

            async def load() -> KnownCore:
                return KnownCore(assets=frozenset({777}))

            operator = TradingCoreClient("core", connect_to(core), CoreCaller("us"), load)
            await operator.totals()
            assert core.book.assets == before
            await operator.close()

    asyncio.run(scene())


def test_a_session_of_a_store_cannot_rebind_the_core(tmp_path: Path) -> None:
    async def scene() -> None:
        async with core_at(tmp_path) as core:
            worker = client_of(core, "store", "here")
            with pytest.raises(Unreachable, match="NOT_ALLOWED"):
                await worker.rebind("store", THERE)
            assert core.book.binding == HERE
            await worker.close()

    asyncio.run(scene())


def test_a_core_is_not_rebound_to_an_empty_store(tmp_path: Path) -> None:
    async def scene() -> None:
        async with core_at(tmp_path) as core:
            worker, operator = client_of(core, "store", "here"), client_of(core, "", "")
            await worker.totals()
            with pytest.raises(Unreachable, match="REBIND without a store"):
                await operator.rebind("store", Binding())
            assert core.book.binding == HERE
            await worker.close()

    asyncio.run(scene())
