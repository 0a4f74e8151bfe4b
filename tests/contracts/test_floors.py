"""The floor of ids, in PostgreSQL and in the twin."""

import time
from typing import cast
from uuid import UUID

import pytest
from msgspec.structs import replace

from tests.contracts.stores import AnyStore, RunScenario, insert, new_transfer
from tidegate.core.ids import first_id, time_ms
from tidegate.core.ports import BelowFloor, Floors
from tidegate.store.floors import PostgresFloors
from tidegate.store.memory_store import MemoryStore
from tidegate.store.postgres import PostgresStore


def test_new_ids_are_above_the_floor_even_if_the_clock_is_behind_it(run: RunScenario) -> None:
    async def scenario(store: AnyStore) -> None:
        floors = floors_of(store)
        at_us = (await store.look([(1, "x")])).at_us
        low, high = first_id(at_us // 1000 - 1000), first_id(at_us // 1000 + 24 * 3600 * 1000)
        assert await floors.raise_to(low) == low
        assert abs((await store.look([(1, "x")])).at_us - at_us) < 60_000_000
        assert await floors.raise_to(UUID(int=high.int + 7)) == UUID(int=high.int + 7)
        assert await floors.raise_to(low) == UUID(int=high.int + 7)  # It never falls.
        at_us = (await store.look([(1, "x")])).at_us
        assert first_id(at_us // 1000) == first_id(time_ms(high) + 1)
        async with store.transaction() as tx:
            assert (await tx.begun()).floor == UUID(int=high.int + 7)

    run(scenario)


def test_a_transfer_below_the_floor_is_refused_and_nothing_is_written(run: RunScenario) -> None:
    async def scenario(store: AnyStore) -> None:
        low, high = new_transfer(), replace(new_transfer(), id=first_id(2**47))
        await floors_of(store).raise_to(UUID(int=low.id.int + 1))
        with pytest.raises(BelowFloor):
            await insert(store, high, low)
        assert await store.find([low.id, high.id]) == []
        await insert(store, high)

    run(scenario)


def test_the_lowest_floor_is_the_horizon_or_an_older_open_transfer(run: RunScenario) -> None:
    async def scenario(store: AnyStore) -> None:
        floors = floors_of(store)
        lowest = await floors.lowest(3600)
        assert abs(time_ms(lowest) - time.time() * 1000 + 3_600_000) < 60_000
        old = replace(new_transfer(), id=UUID(int=lowest.int - 1))
        await insert(store, new_transfer(), old)
        assert await floors.lowest(3600) == old.id

    run(scenario)


def floors_of(store: AnyStore) -> Floors:
    return PostgresFloors(store) if isinstance(store, PostgresStore) else cast(MemoryStore, store)
