"""The rows and the WAL bytes that a transfer costs the database, on any machine."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster import create_database
from tests.conftest import SCHEMA
from tests.store.scenario import (
    EngineSetup,
    deposit,
    from_remote,
    rows,
    run_to_end,
    running,
    to_remote,
)
from tidegate.engine.engine import Engine
from tidegate.flows import FLOWS
from tidegate.postgres import Server, private_directory
from tidegate.store.migrate import migrate

SIZE = 500
OWNERS = range(1, SIZE + 1)
# Rows inserted and updated per table, for a creation, one local answer and one outside answer.
ROWS = {
    "attempts": (0, 0),
    "cids": (1, 0),
    "history": (2, 0),
    "ledger_accounts": (0, 1),
    "ledger_operations": (1, 0),
    "transfers": (1, 1),
}
# Measured: 2 446 bytes to the outside system and 2 354 back, plus a margin.
MAX_LOG_BYTES = 2_700

COUNT_ROWS = """
SELECT relname, n_tup_ins, n_tup_upd
  FROM pg_stat_user_tables
 WHERE schemaname = %s AND relname = ANY(%s)
"""
WAL_BYTES = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint"


@pytest.fixture(scope="module")
def own_server() -> Iterator[str]:
    """A separate server without autovacuum and checkpoints: it writes WAL only for this test."""
    settings = {"autovacuum": "off", "checkpoint_timeout": "1h", "max_wal_size": "2GB"}
    with private_directory() as directory, Server(directory, settings=settings) as server:
        url = create_database(server.url(), "cost")
        migrate(url, SCHEMA, FLOWS.values(), economy=True)
        asyncio.run(_funded(url))
        yield url


async def _funded(database: str) -> None:
    async with running(EngineSetup(database, scan_s=3600)) as engine:
        await _all(engine, deposit, 1000)


async def _all(engine: Engine[Any], make: Any, amount: int) -> None:
    ended = await asyncio.gather(*[run_to_end(engine, make(owner, amount)) for owner in OWNERS])
    assert {transfer.state for transfer in ended} <= {"COMMITTED", "COMPLETED"}


def _written(database: str) -> dict[str, tuple[int, int]]:
    """Rows inserted and updated so far, by table. Sessions report them when they end."""
    counts = rows(database, COUNT_ROWS, SCHEMA, list(ROWS))
    return {name: (inserted, updated) for name, inserted, updated in counts}


@pytest.mark.parametrize("make", [to_remote, from_remote])
def test_rows_and_log_of_a_transfer(own_server: str, make: Any) -> None:
    async def bytes_per_transfer() -> float:
        async with running(EngineSetup(own_server, scan_s=3600)) as engine:
            await _all(engine, make, 1)  # The first change of a page writes the whole page to WAL.
            [(before,)] = rows(own_server, WAL_BYTES)
            await _all(engine, make, 1)
            [(after,)] = rows(own_server, WAL_BYTES)
            return float(after - before) / SIZE

    earlier = _written(own_server)
    bytes_each = asyncio.run(bytes_per_transfer())
    later = _written(own_server)
    grown = {n: (later[n][0] - earlier[n][0], later[n][1] - earlier[n][1]) for n in ROWS}
    assert grown == {n: (2 * SIZE * i, 2 * SIZE * u) for n, (i, u) in ROWS.items()}
    assert bytes_each <= MAX_LOG_BYTES
