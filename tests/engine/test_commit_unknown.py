"""After a COMMIT without a reply the same batch is written again, with the same ids and keys."""

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
def short_dir() -> Iterator[Path]:
    """A directory with a short name: the path of a socket is limited to about 100 bytes."""
    with tempfile.TemporaryDirectory(prefix="tg") as name:
        yield Path(name)


async def _submit(
    database: str, directory: Path, direction: str
) -> tuple[Proxy, Rig, list[Receipt]]:
    async with proxied(database, directory) as (address, proxy):
        limits = StoreLimits(lease_s=1.0, lock_s=0.3, pool_wait_s=5.0)
        async with PostgresStore(address, SCHEMA, limits) as store:
            rig = Rig(store, Ledger(), Outside(Venue()))
            await rig.endow(1_000)
            async with rig.engine(random.randrange(10**6)) as engine:
                proxy.swallow = 1
                results = await asyncio.gather(
                    *(engine.submit(request(direction, 100, f"c{n}")) for n in range(5))
                )
                receipts = [r for r in results if isinstance(r, Receipt)]
                assert len(receipts) == 5
                ended = await rig.ended([r.transfer for r in receipts])
                assert {t.state for t in ended} == {"COMMITTED"}
            count = await store.run("SELECT count(*) FROM transfers", {})
            assert count == [(6,)], "one deposit and five transfers"
            change = 500 if direction == "out" else -500
            assert await rig.funding() == 1_000 + change
            assert rig.venue_account(OWNER).available == 1_000 - change
            return proxy, rig, receipts


@pytest.mark.parametrize("direction", ["in", "out"])
def test_a_creation_whose_commit_gets_no_reply_creates_one_transfer(
    database: str, short_dir: Path, direction: str
) -> None:
    proxy, _, receipts = asyncio.run(_submit(database, short_dir, direction))
    assert proxy.swallowed == 1
    assert not any(r.duplicate for r in receipts), "each caller created its transfer"


@pytest.mark.parametrize("direction", ["in", "out"])
def test_a_retry_waits_for_a_lost_session_that_still_holds_its_locks(
    database: str, short_dir: Path, direction: str
) -> None:
    with psycopg.connect(database, autocommit=True) as owner:
        owner.execute(f"SET search_path TO {SCHEMA}")
        owner.execute(SLOW_COMMIT)
    began_s = time.monotonic()
    proxy, _, receipts = asyncio.run(_submit(database, short_dir, direction))
    assert proxy.swallowed == 1
    assert time.monotonic() - began_s > 0.8
    assert not any(r.duplicate for r in receipts)


def test_an_answer_whose_commit_gets_no_reply_is_recorded_once(
    database: str, short_dir: Path
) -> None:
    async def scene(store: PostgresStore, proxy: Proxy) -> None:
        rig = Rig(store, Ledger(), Outside(Venue()))
        await rig.endow(1_000)

        async def twist(_: Sequence[Question], execute: Execute) -> Sequence[Answer]:
            answers = execute()
            proxy.swallow = 1
            rig.outside.twist = None
            return answers

        rig.outside.twist = twist
        async with rig.engine() as engine:
            receipt = await engine.transfer(request("out", 300), wait_s=10)
        assert isinstance(receipt, Receipt)
        assert (receipt.transfer.state, receipt.transfer.version) == ("COMMITTED", 2)
        assert await rig.funding() == 1_300
        assert proxy.swallowed == 1

    async def behind_proxy() -> None:
        async with (
            proxied(database, short_dir) as (address, proxy),
            PostgresStore(address, SCHEMA, StoreLimits(lease_s=1.0)) as store,
        ):
            await scene(store, proxy)

    asyncio.run(behind_proxy())
