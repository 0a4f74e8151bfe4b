"""What a transfer costs the database in rows and in bytes of its log, whatever the machine."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster import create_database
from tests.conftest import SCHEMA
from tests.store.scenario import Setting, deposit, from_remote, moved, rows, running, to_remote
from tidegate.engine.engine import Engine
from tidegate.flows import FLOWS
from tidegate.postgres import Server, private_directory
from tidegate.store.migrate import migrate

SIZE = 500
OWNERS = range(1, SIZE + 1)
# Inserted and updated, by table. A birth, one answer inside and one outside.
ROWS = {
    "attempts": (0, 0),
    "cids": (1, 0),
    "history": (2, 0),
    "ledger_accounts": (0, 1),
    "ledger_operations": (1, 0),
    "transfers": (1, 1),
}
# Measured: 2 446 there and 2 354 back. What is above was added by somebody.
MAX_LOG_BYTES = 2_700

COUNTED = """
SELECT relname, n_tup_ins, n_tup_upd
  FROM pg_stat_user_tables
 WHERE schemaname = %s AND relname = ANY(%s)
"""
LOGGED = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint"


@pytest.fixture(scope="module")
def alone() -> Iterator[str]:
    """A server of its own: what it writes is written for nobody else. And it rests meanwhile."""
    settings = {"autovacuum": "off", "checkpoint_timeout": "1h", "max_wal_size": "2GB"}
    with private_directory() as directory, Server(directory, settings=settings) as server:
        url = create_database(server.url(), "cost")
        migrate(url, SCHEMA, FLOWS.values())
        asyncio.run(_funded(url))
        yield url


async def _funded(database: str) -> None:
    async with running(Setting(database, scan_s=3600)) as engine:
        await _all(engine, deposit, 1000)


async def _all(engine: Engine[Any], make: Any, amount: int) -> None:
    ended = await asyncio.gather(*[moved(engine, make(owner, amount)) for owner in OWNERS])
    assert {transfer.state for transfer in ended} <= {"COMMITTED", "COMPLETED"}


def _written(database: str) -> dict[str, tuple[int, int]]:
    """Told by every session when it ends."""
    found = rows(database, COUNTED, SCHEMA, list(ROWS))
    return {name: (inserted, updated) for name, inserted, updated in found}


@pytest.mark.parametrize("make", [to_remote, from_remote])
def test_rows_and_log_of_a_transfer(alone: str, make: Any) -> None:
    async def scene() -> float:
        async with running(Setting(alone, scan_s=3600)) as engine:
            await _all(engine, make, 1)  # The first to touch a page writes all of it to the log.
            [(before,)] = rows(alone, LOGGED)
            await _all(engine, make, 1)
            [(after,)] = rows(alone, LOGGED)
            return float(after - before) / SIZE

    earlier = _written(alone)
    bytes_each = asyncio.run(scene())
    later = _written(alone)
    grown = {n: (later[n][0] - earlier[n][0], later[n][1] - earlier[n][1]) for n in ROWS}
    assert grown == {n: (2 * SIZE * i, 2 * SIZE * u) for n, (i, u) in ROWS.items()}
    assert bytes_each <= MAX_LOG_BYTES
