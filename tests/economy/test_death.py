"""A program that uses the library notices at once that a bug has stopped its engine."""

import asyncio
from typing import Any

import pytest
from psycopg_pool import AsyncConnectionPool

from tests.economy.rig import ANNA, BEN, GUILD, Play, Rig
from tidegate.economy import TransferEventPoolCoordinator, TransferService, TransferUnavailable
from tidegate.engine.stopped import EngineStopped
from tidegate.store.postgres import PostgresStore

SOON_S = 5.0
PAY: dict[str, Any] = {"guild_id": GUILD, "initiator_id": ANNA, "target_id": BEN, "amount": 5}


async def broken(*_: object, **__: object) -> Any:
    raise ZeroDivisionError("a planted bug")


def test_the_service_raises_and_then_starts_a_new_engine(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(rig: Rig) -> None:
        async with (
            AsyncConnectionPool(rig.database, min_size=1, max_size=4) as pool,
            TransferService(pool) as service,
        ):
            await service.transfer_currency(**PAY)
            with monkeypatch.context() as planted:
                planted.setattr(PostgresStore, "look", broken)
                for _ in range(2):
                    with pytest.raises(TransferUnavailable, match="planted bug"):
                        await asyncio.wait_for(service.transfer_currency(**PAY, cid="once"), SOON_S)
            await asyncio.wait_for(service.transfer_currency(**PAY, cid="once"), SOON_S)
        assert (rig.balance(ANNA), rig.balance(BEN)) == (990, 1_010)

    play(scene)


def test_wait_raises_when_the_engine_of_the_coordinator_has_stopped(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(rig: Rig) -> None:
        async with (
            AsyncConnectionPool(rig.database, min_size=1, max_size=4) as pool,
            TransferEventPoolCoordinator(pool, scan_s=0.1) as coordinator,
        ):
            waiting = asyncio.ensure_future(coordinator.wait())
            with monkeypatch.context() as planted:
                planted.setattr(PostgresStore, "due", broken)
                with pytest.raises(EngineStopped, match="planted bug"):
                    await asyncio.wait_for(waiting, SOON_S)
            await coordinator.stop()
            await coordinator.start()
            await rig.until(rig.insert(5), "completed")

    play(scene)
