"""A COMMIT that lands late, with daily limits: nobody is refused what has moved money."""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.conftest import SCHEMA
from tests.engine.proxy import Proxy, proxied
from tests.engine.rig import ASSET, OWNER, Outside, Rig, request
from tests.engine.venue import Venue
from tidegate.core.refusals import Refusal
from tidegate.engine.engine import Engine
from tidegate.engine.pending_request import Receipt
from tidegate.simulation.world import until
from tidegate.store.daily_limits import DailyLimits
from tidegate.store.postgres import PostgresStore
from tidegate.store.sessions import StoreLimits
from tidegate.systems.ledger import Ledger

pytestmark = pytest.mark.slow

OTHER, THIRD = OWNER + 1, OWNER + 2
LINGERS_S = 1.5
LATE_COMMIT = f"""
    CREATE FUNCTION linger() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_sleep({LINGERS_S});
        RETURN NULL;
    END $$;
    CREATE CONSTRAINT TRIGGER linger AFTER INSERT ON transfers
        DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
        WHEN (NEW.flow = 'internal_transfer' AND NEW.owner IN ({OWNER}, {OTHER}))
        EXECUTE FUNCTION linger();
"""
USE_UP = f"""
    INSERT INTO daily_totals (owner, asset_id, utc_day, count, amount)
    SELECT {OWNER}, a, (now() AT TIME ZONE 'UTC')::date, 1, 100 FROM unnest(ARRAY[0, {ASSET}]) AS a
"""


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory with a short name: a socket's path has little room."""
    with tempfile.TemporaryDirectory(prefix="tg") as name:
        yield Path(name)


def run_sql(database: str, statement: str) -> None:
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute(f"SET search_path TO {SCHEMA}")
        owner.execute(statement)


def limited(rig: Rig, seed: int) -> Engine[Any]:
    """One transfer of 100 a day."""
    return Engine(replace(rig.parts(seed), admission=DailyLimits(1, {ASSET: 100})))


@asynccontextmanager
async def behind_proxy(database: str, directory: Path) -> AsyncIterator[tuple[Rig, Proxy]]:
    bounds = StoreLimits(lease_s=1.0, lock_s=0.3, pool_wait_s=5.0)
    async with (
        proxied(database, directory) as (address, proxy),
        PostgresStore(address, SCHEMA, bounds) as store,
    ):
        rig = Rig(store, Ledger(), Outside(Venue()))
        for owner in (OWNER, OTHER, THIRD):
            await rig.endow(1_000, owner)
        yield rig, proxy


@pytest.mark.parametrize("cid", ["mine", None])
def test_a_limit_that_the_late_commit_used_up_is_not_told_as_its_refusal(
    database: str, short: Path, cid: str | None
) -> None:
    run_sql(database, LATE_COMMIT)

    async def whole() -> None:
        async with behind_proxy(database, short) as (rig, proxy), limited(rig, 1) as engine:
            proxy.swallow = 1
            told = await engine.transfer(request("in", 100, cid), wait_s=10)
            assert isinstance(told, Receipt), f"refused by {told}, and the money has moved"
            assert proxy.swallowed == 1
            [ended] = await rig.ended([told.transfer])
            assert ended.state == "COMMITTED"
            assert await rig.funding() == 900
            # The limit is really used up.
            again = await engine.transfer(request("in", 100, "another"))
            assert again is Refusal.DAILY_LIMIT_EXCEEDED

    asyncio.run(whole())


def test_the_same_request_at_another_process_is_not_refused_either(
    database: str, short: Path
) -> None:
    """Its client has heard nothing, and asks the next process, which waits for the limit's row."""
    run_sql(database, LATE_COMMIT)

    async def whole() -> None:
        async with (
            behind_proxy(database, short) as (rig, proxy),
            PostgresStore(database, SCHEMA) as beside,
        ):
            other = Rig(beside, Ledger(), rig.outside)
            async with limited(rig, 1) as first, limited(other, 2) as second:
                proxy.swallow = 1
                asked = asyncio.ensure_future(first.submit(request("in", 100, "mine")))
                await until(lambda: proxy.swallowed == 1, 0.01)
                told = await second.transfer(request("in", 100, "mine"), wait_s=10)
                assert isinstance(told, Receipt), f"refused by {told}, and the money has moved"
                mine = await asked
                assert isinstance(mine, Receipt)
                assert mine.transfer.id == told.transfer.id
                await rig.ended([told.transfer])
            assert await rig.funding() == 900

    asyncio.run(whole())


def test_when_the_first_try_is_known_to_be_aborted_the_refusal_is_told(
    database: str, short: Path
) -> None:
    async def whole() -> None:
        async with behind_proxy(database, short) as (rig, proxy), limited(rig, 1) as engine:
            # The COMMIT never reaches the server, and somebody else uses up the limit.
            proxy.drop, proxy.meanwhile = 1, lambda: run_sql(database, USE_UP)
            told = await engine.transfer(request("in", 100, "mine"), wait_s=10)
            assert proxy.drop == 0
            assert told is Refusal.DAILY_LIMIT_EXCEEDED
            assert await rig.funding() == 1_000

    asyncio.run(whole())


def test_a_halt_is_not_told_as_the_refusal_of_what_may_have_been_committed(
    database: str, short: Path
) -> None:
    """Of a request that locks no account, so that nothing tells the second try of the first."""
    run_sql(database, LATE_COMMIT)
    halt = "INSERT INTO halts (reason, actor) VALUES ('drill', 'test')"

    async def whole() -> None:
        async with behind_proxy(database, short) as (rig, proxy), rig.engine(1) as engine:
            proxy.swallow, proxy.meanwhile = 1, lambda: run_sql(database, halt)
            told = await engine.transfer(request("out", 100), wait_s=0.5)
            assert isinstance(told, Receipt), f"refused by {told}, and it exists"
            await rig.store.resume("drill is over", "test")
            [ended] = await rig.ended([told.transfer])
            assert ended.state == "COMMITTED"
            assert await rig.funding() == 1_100

    asyncio.run(whole())


def test_batches_in_doubt_do_not_block_the_transfers_of_others(database: str, short: Path) -> None:
    """Two are in doubt, as many as there are loops for requests."""
    run_sql(database, LATE_COMMIT)

    async def whole() -> None:
        async with behind_proxy(database, short) as (rig, proxy), rig.engine(1) as engine:
            proxy.swallow = 2
            doubtful = []
            for owner in (OWNER, OTHER):
                before = proxy.swallowed
                wanted = request("in", 100, "mine", owner)
                doubtful.append(asyncio.ensure_future(engine.submit(wanted)))
                await until(lambda: proxy.swallowed > before, 0.01)  # noqa: B023
            began_s = time.monotonic()
            told = await engine.transfer(request("in", 100, "other", THIRD), wait_s=10)
            took_s = time.monotonic() - began_s
            assert isinstance(told, Receipt)
            assert told.transfer.state == "COMMITTED"
            assert not any(task.done() for task in doubtful), f"after {took_s:.2f} s"
            receipts = [r for r in await asyncio.gather(*doubtful) if isinstance(r, Receipt)]
            assert len(receipts) == 2
            await rig.ended([r.transfer for r in receipts])

    asyncio.run(whole())
