"""Large tables with millions of finished transfers, and a backlog after an outage."""

import asyncio
import time

import psycopg

from bench.in_process import request_of
from bench.spec import ASSET, STORE, Spec
from bench.traffic import Traffic
from bench.world import Base, NotConserved, World, books
from tidegate import Alert, Receipt, Setup, open_gate

# The rows of a finished transfer FUNDING → SPOT as an engine writes them: the same columns and
# widths, with ids that grow with time. Their hashes are not real, as nothing reads them here.
FILL = f"""
INSERT INTO {STORE}.transfers (id, owner, flow, state, lane, due_at, version, attempts, retries,
    paged, parties, asset_id, amount, undoes, cid, head_hash, created_at, updated_at)
SELECT id, owner, 'internal_transfer', 'COMMITTED', NULL, at, 2, 1, 0, false,
       jsonb_build_object('source', jsonb_build_array('ledger', 'FUNDING', owner),
                          'target', jsonb_build_array('core', 'SPOT', owner)),
       {ASSET}, 1, 0, cid, hash, at, at FROM finished;
INSERT INTO {STORE}.cids (owner, cid, fingerprint, transfer_id)
SELECT owner, cid, substr(hash, 1, 16), id FROM finished;
INSERT INTO {STORE}.history (transfer_id, version, flow, from_state, waypoints, to_state, verb,
    answer, reason, evidence, actor, at, hash)
SELECT id, v.version, 'internal_transfer', v.before, v.waypoints, v.after, v.verb, 'done', '',
       v.evidence::jsonb, '', at, hash
  FROM finished, (VALUES
       (0, 'INIT', 'SOURCE_PENDING SOURCE_DONE', 'TARGET_PENDING', 'debit', NULL),
       (1, 'TARGET_PENDING', '', 'COMMITTED', 'credit', '{{"position": "1000000"}}')
       ) AS v (version, before, waypoints, after, verb, evidence);
INSERT INTO {STORE}.ledger_operations (transfer_id, version, owner, book, asset_id, verb, amount,
    undoes, result, reason, delta, held_delta, balance_after, at)
SELECT id, 0, owner, 'FUNDING', {ASSET}, 'debit', 1, NULL, 'done', '', -1, 0, 1000000, at
  FROM finished;
"""
FINISHED = """
CREATE TEMPORARY TABLE finished AS
SELECT (lpad(to_hex(1700000000000 + n / 20), 12, '0') || '7000' ||
        substr(md5(n::text), 1, 16))::uuid AS id,
       1 + n %% %(accounts)s AS owner,
       'filled-' || n AS cid,
       sha256(n::text::bytea) AS hash,
       now() - interval '2 days' + n * interval '10 microseconds' AS at
  FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n
"""
CHUNK = 500_000
OUTAGE = 4_000  # Transfers in flight while the core is unreachable.
DRAIN_S, POLL_S = 300.0, 0.1


def fill(world: World, accounts: int, count: int) -> Base:
    """A base with `count` finished transfers in its tables."""
    base = world.copied(world.base(accounts), f"finished_{count}")
    with psycopg.connect(world.server.url(base.database), autocommit=True) as connection:
        connection.execute("SET synchronous_commit = off")
        for first in range(0, count, CHUNK):
            _fill(connection, accounts, first, min(first + CHUNK, count) - 1)
        connection.execute("VACUUM ANALYZE")
    return base


def _fill(connection: psycopg.Connection, accounts: int, first: int, last: int) -> None:
    values = {"accounts": accounts, "first": first, "last": last}
    connection.execute(FINISHED, values)
    connection.execute(FILL.encode())
    connection.execute("DROP TABLE finished")


def backlog(world: World, accounts: int, count: int) -> float:
    """Seconds to finish the transfers that were created while the core was unreachable."""
    with world.stage(world.base(accounts)) as stage:
        before = books(stage)
        unreachable = f"unix:{stage.directory / 'missing'}"
        asyncio.run(_create(stage.database, unreachable, accounts, count))
        started_s = time.monotonic()
        asyncio.run(_drain(stage.database, stage.core, count))
        seconds = time.monotonic() - started_s
        after = books(stage)
    if after.money != before.money or after.open:
        raise NotConserved(f"backlog: {before} became {after}")
    return round(seconds, 2)


async def _create(database: str, core: str, accounts: int, count: int) -> None:
    """Run an engine that cannot reach its core: all transfers rest and are due."""
    spec = Spec(kind="", database="", core="", inflight=0, seconds=0, warm_s=0, accounts=accounts)
    traffic = Traffic(spec)
    async with open_gate(Setup(database, STORE, core, alert=_ignore)) as gate:
        for first in range(0, count, OUTAGE):
            numbers = range(first, min(first + OUTAGE, count))
            requests = [request_of(traffic.order(number)) for number in numbers]
            replies = await asyncio.gather(*(gate.engine.submit(r) for r in requests))
            assert all(isinstance(reply, Receipt) for reply in replies), "not all were accepted"


async def _drain(database: str, core: str, count: int) -> None:
    """Run an engine that reaches the core until no transfer is open."""
    statement = f"SELECT count(*) FROM {STORE}.transfers WHERE lane IS NOT NULL".encode()
    async with (
        open_gate(Setup(database, STORE, core, alert=_ignore)),
        await psycopg.AsyncConnection.connect(database, autocommit=True) as connection,
    ):
        for _ in range(int(DRAIN_S / POLL_S)):
            left = await _count(connection, statement)
            if not left:
                return
            await asyncio.sleep(POLL_S)
    raise RuntimeError(f"{left} of {count} are open after {DRAIN_S:g} s")


async def _count(connection: psycopg.AsyncConnection, statement: bytes) -> int:
    [count] = await (await connection.execute(statement)).fetchone() or (0,)
    return int(count)


def _ignore(_: Alert) -> None:
    """Ignore alerts: the core is unreachable on purpose."""
