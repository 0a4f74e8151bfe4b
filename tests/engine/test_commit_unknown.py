"""A COMMIT whose reply is lost: the same batch runs again with the same ids; the keys decide."""

import asyncio
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psycopg
import pytest

from tests.conftest import SCHEMA
from tests.engine.proxy import Proxy, proxied
from tests.engine.rig import OWNER, Execute, Outside, Rig, request
from tests.engine.venue import Venue
from tidegate.core.answers import Answer
from tidegate.core.transfer import Question
from tidegate.engine.pending_request import Receipt
from tidegate.store.postgres import PostgresStore
from tidegate.store.sessions import StoreLimits
from tidegate.systems.ledger import Ledger

pytestmark = pytest.mark.slow

SLOW_COMMIT = """
    CREATE FUNCTION linger() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_sleep(0.8);
        RETURN NULL;
    END $$;
    CREATE CONSTRAINT TRIGGER linger AFTER INSERT ON transfers
        DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION linger();
"""


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory with a short name: a socket's path has little room."""
    with tempfile.TemporaryDirectory(prefix="tg") as name:
        yield Path(name)


async def _submit(database: str, directory: Path, way: str) -> tuple[Proxy, Rig, list[Receipt]]:
    async with proxied(database, directory) as (address, proxy):
        bounds = StoreLimits(lease_s=1.0, lock_s=0.3, pool_wait_s=5.0)
        async with PostgresStore(address, SCHEMA, bounds) as store:
            rig = Rig(store, Ledger(), Outside(Venue()))
            await rig.endow(1_000)
            async with rig.engine(random.randrange(10**6)) as engine:
                proxy.swallow = 1
                said = await asyncio.gather(
                    *(engine.submit(request(way, 100, f"c{n}")) for n in range(5))
                )
                receipts = [s for s in said if isinstance(s, Receipt)]
                assert len(receipts) == 5
                ended = await rig.ended([r.transfer for r in receipts])
                assert {t.state for t in ended} == {"COMMITTED"}
            count = await store.run("SELECT count(*) FROM transfers", {})
            assert count == [(6,)], "the deposit and the five"
            change = 500 if way == "out" else -500
            assert await rig.funding() == 1_000 + change
            assert rig.venue_account(OWNER).available == 1_000 - change
            return proxy, rig, receipts


@pytest.mark.parametrize("way", ["in", "out"])
def test_a_birth_whose_commit_is_not_heard_of_is_born_once(
    database: str, short: Path, way: str
) -> None:
    proxy, _, receipts = asyncio.run(_submit(database, short, way))
    assert proxy.swallowed == 1
    assert not any(r.duplicate for r in receipts), "it is the caller's own transfer"


@pytest.mark.parametrize("way", ["in", "out"])
def test_a_lost_session_that_still_holds_its_locks_is_waited_for(
    database: str, short: Path, way: str
) -> None:
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute(f"SET search_path TO {SCHEMA}")
        owner.execute(SLOW_COMMIT)
    began = time.monotonic()
    proxy, _, receipts = asyncio.run(_submit(database, short, way))
    assert proxy.swallowed == 1
    assert time.monotonic() - began > 0.8
    assert not any(r.duplicate for r in receipts)


def test_an_answer_whose_commit_is_not_heard_of_is_recorded_once(
    database: str, short: Path
) -> None:
    async def whole(store: PostgresStore, proxy: Proxy) -> None:
        rig = Rig(store, Ledger(), Outside(Venue()))
        await rig.endow(1_000)

        async def twist(_: Sequence[Question], execute: Execute) -> Sequence[Answer]:
            answers = execute()
            proxy.swallow = 1
            rig.outside.twist = None
            return answers

        rig.outside.twist = twist
        async with rig.engine() as engine:
            said = await engine.transfer(request("out", 300), wait_s=10)
        assert isinstance(said, Receipt)
        assert (said.transfer.state, said.transfer.version) == ("COMMITTED", 2)
        assert await rig.funding() == 1_300
        assert proxy.swallowed == 1

    async def behind_proxy() -> None:
        async with (
            proxied(database, short) as (address, proxy),
            PostgresStore(address, SCHEMA, StoreLimits(lease_s=1.0)) as store,
        ):
            await whole(store, proxy)

    asyncio.run(behind_proxy())
