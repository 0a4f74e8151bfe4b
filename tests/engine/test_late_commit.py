"""A COMMIT that is late, with daily limits: a transfer that moved money is not refused."""

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
def short_dir() -> Iterator[Path]:
    """A directory with a short name: the path of a socket is limited to about 100 bytes."""
    with tempfile.TemporaryDirectory(prefix="tg") as name:
        yield Path(name)


def run_sql(database: str, statement: str) -> None:
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute(f"SET search_path TO {SCHEMA}")
        owner.execute(statement)


def limited(rig: Rig, seed: int) -> Engine[Any]:
    """An engine whose daily limit is one transfer of 100."""
    return Engine(replace(rig.parts(seed), admission=DailyLimits(1, {ASSET: 100})))


@asynccontextmanager
async def behind_proxy(database: str, directory: Path) -> AsyncIterator[tuple[Rig, Proxy]]:
    limits = StoreLimits(lease_s=1.0, lock_s=0.3, pool_wait_s=5.0)
    async with (
        proxied(database, directory) as (address, proxy),
        PostgresStore(address, SCHEMA, limits) as store,
    ):
        rig = Rig(store, Ledger(), Outside(Venue()))
        for owner in (OWNER, OTHER, THIRD):
            await rig.endow(1_000, owner)
        yield rig, proxy


@pytest.mark.parametrize("cid", ["mine", None])
def test_a_request_is_not_refused_for_a_limit_that_its_own_late_commit_used_up(
    database: str, short_dir: Path, cid: str | None
) -> None:
    run_sql(database, LATE_COMMIT)

    async def run() -> None:
        async with behind_proxy(database, short_dir) as (rig, proxy), limited(rig, 1) as engine:
            proxy.swallow = 1
            result = await engine.transfer(request("in", 100, cid), wait_s=10)
            assert isinstance(result, Receipt), f"refused with {result}, and the money has moved"
            assert proxy.swallowed == 1
            [ended] = await rig.ended([result.transfer])
            assert ended.state == "COMMITTED"
            assert await rig.funding() == 900
            # The limit is used up indeed.
            second = await engine.transfer(request("in", 100, "another"))
            assert second is Refusal.DAILY_LIMIT_EXCEEDED

    asyncio.run(run())


def test_the_same_request_to_another_process_is_not_refused_either(
    database: str, short_dir: Path
) -> None:
    """The client got no reply and asks another process, which waits for the row of the limit."""
    run_sql(database, LATE_COMMIT)

    async def run() -> None:
        async with (
            behind_proxy(database, short_dir) as (rig, proxy),
            PostgresStore(database, SCHEMA) as other_store,
        ):
            other = Rig(other_store, Ledger(), rig.outside)
            async with limited(rig, 1) as first, limited(other, 2) as second:
                proxy.swallow = 1
                first_call = asyncio.ensure_future(first.submit(request("in", 100, "mine")))
                await until(lambda: proxy.swallowed == 1, 0.01)
                result = await second.transfer(request("in", 100, "mine"), wait_s=10)
                assert isinstance(result, Receipt), (
                    f"refused with {result}, and the money has moved"
                )
                first_result = await first_call
                assert isinstance(first_result, Receipt)
                assert first_result.transfer.id == result.transfer.id
                await rig.ended([result.transfer])
            assert await rig.funding() == 900

    asyncio.run(run())


def test_after_a_first_try_that_is_known_to_be_aborted_the_request_is_refused(
    database: str, short_dir: Path
) -> None:
    async def run() -> None:
        async with behind_proxy(database, short_dir) as (rig, proxy), limited(rig, 1) as engine:
            # The COMMIT does not reach the server, and another session uses up the limit.
            proxy.drop, proxy.meanwhile = 1, lambda: run_sql(database, USE_UP)
            result = await engine.transfer(request("in", 100, "mine"), wait_s=10)
            assert proxy.drop == 0
            assert result is Refusal.DAILY_LIMIT_EXCEEDED
            assert await rig.funding() == 1_000

    asyncio.run(run())


def test_a_request_that_may_have_been_committed_is_not_refused_because_of_a_halt(
    database: str, short_dir: Path
) -> None:
    """The request locks no account, so the second try does not wait for the first one."""
    run_sql(database, LATE_COMMIT)
    halt = "INSERT INTO halts (reason, actor) VALUES ('drill', 'test')"

    async def run() -> None:
        async with behind_proxy(database, short_dir) as (rig, proxy), rig.engine(1) as engine:
            proxy.swallow, proxy.meanwhile = 1, lambda: run_sql(database, halt)
            result = await engine.transfer(request("out", 100), wait_s=0.5)
            assert isinstance(result, Receipt), f"refused with {result}, and the transfer exists"
            await rig.store.resume("drill is over", "test")
            [ended] = await rig.ended([result.transfer])
            assert ended.state == "COMMITTED"
            assert await rig.funding() == 1_100

    asyncio.run(run())


def test_batches_in_doubt_do_not_block_the_transfers_of_others(
    database: str, short_dir: Path
) -> None:
    """Two batches are in doubt, as many as the request queue has loops."""
    run_sql(database, LATE_COMMIT)

    async def run() -> None:
        async with behind_proxy(database, short_dir) as (rig, proxy), rig.engine(1) as engine:
            proxy.swallow = 2
            doubtful = []
            for owner in (OWNER, OTHER):
                before = proxy.swallowed
                wanted = request("in", 100, "mine", owner)
                doubtful.append(asyncio.ensure_future(engine.submit(wanted)))
                await until(lambda: proxy.swallowed > before, 0.01)  # noqa: B023
            began_s = time.monotonic()
            result = await engine.transfer(request("in", 100, "other", THIRD), wait_s=10)
            took_s = time.monotonic() - began_s
            assert isinstance(result, Receipt)
            assert result.transfer.state == "COMMITTED"
            assert not any(task.done() for task in doubtful), f"after {took_s:.2f} s"
            receipts = [r for r in await asyncio.gather(*doubtful) if isinstance(r, Receipt)]
            assert len(receipts) == 2
            await rig.ended([r.transfer for r in receipts])

    asyncio.run(run())
