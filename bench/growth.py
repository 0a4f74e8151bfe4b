"""Tables that have grown: finished transfers by the million, and a backlog after an outage."""

import asyncio
import time

import psycopg

from bench.in_process import request_of
from bench.spec import ASSET, STORE, Spec
from bench.traffic import Traffic
from bench.world import Base, NotConserved, World, books
from tidegate import Alert, Receipt, Setup, open_gate

# Rows as an engine leaves them behind at the end of a transfer FUNDING → SPOT: same columns, same
# widths, ids that grow with time. They are finished; nothing reads their hashes here.
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
OUTAGE = 4_000  # In flight while the core is away.
DRAIN_S, LOOK_S = 300.0, 0.1


def fill(world: World, accounts: int, count: int) -> Base:
    """A base whose tables hold so many finished transfers, besides the money of every base."""
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
    """Transfers born while the core was away, and how many seconds they take once it is back."""
    with world.stage(world.base(accounts)) as stage:
        before = books(stage)
        gone = f"unix:{stage.directory / 'nobody'}"
        asyncio.run(_born(stage.database, gone, accounts, count))
        began_s = time.monotonic()
        asyncio.run(_drain(stage.database, stage.core, count))
        seconds = time.monotonic() - began_s
        after = books(stage)
    if after.money != before.money or after.open:
        raise NotConserved(f"backlog: {before} became {after}")
    return round(seconds, 2)


async def _born(database: str, core: str, accounts: int, count: int) -> None:
    """An engine that cannot reach its core: everything rests, and is due."""
    spec = Spec(kind="", database="", core="", inflight=0, seconds=0, warm_s=0, accounts=accounts)
    traffic = Traffic(spec)
    async with open_gate(Setup(database, STORE, core, alert=_calm)) as gate:
        for first in range(0, count, OUTAGE):
            numbers = range(first, min(first + OUTAGE, count))
            requests = [request_of(traffic.order(number)) for number in numbers]
            said = await asyncio.gather(*(gate.engine.submit(r) for r in requests))
            assert all(isinstance(each, Receipt) for each in said), "all were taken"


async def _drain(database: str, core: str, count: int) -> None:
    """From the start of an engine that reaches it until nothing is open any more."""
    statement = f"SELECT count(*) FROM {STORE}.transfers WHERE lane IS NOT NULL".encode()
    async with (
        open_gate(Setup(database, STORE, core, alert=_calm)),
        await psycopg.AsyncConnection.connect(database, autocommit=True) as connection,
    ):
        for _ in range(int(DRAIN_S / LOOK_S)):
            left = await _count(connection, statement)
            if not left:
                return
            await asyncio.sleep(LOOK_S)
    raise RuntimeError(f"{left} of {count} are open after {DRAIN_S:g} s")


async def _count(connection: psycopg.AsyncConnection, statement: bytes) -> int:
    [count] = await (await connection.execute(statement)).fetchone() or (0,)
    return int(count)


def _calm(_: Alert) -> None:
    """That the core is away is what is being tried."""
