"""Plans: every hot statement uses its index, on empty tables and on a million rows."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.cluster import cluster_url, create_database, drop_database
from tests.conftest import SCHEMA
from tests.store.plans import (
    BIG,
    Plan,
    StatementCase,
    compared_in_full,
    indexes,
    plan_of,
    prepare,
    read_in_full,
    sent_statements,
)
from tests.store.scenario import EngineSetup, deposit, run_to_end, running, superuser, to_remote
from tests.store.statement_log import TEXTS
from tidegate.flows import FLOWS
from tidegate.store.flow_checks import checksums
from tidegate.store.pipeline import text_of
from tidegate.store.postgres import PostgresStore
from tidegate.store.rows import table_columns
from tidegate.store.sessions import StoreLimits, session_options

pytestmark = pytest.mark.slow

SIZES = (1, 1000)
# After five custom plans PostgreSQL may switch to a generic plan.
RUNS_UNTIL_GENERIC = 7

HOT = {
    "due": {"transfers_due"},
    "claim": {"transfers_due", "transfers_pkey"},
    "lock": {"transfers_pkey"},
    "record": {"transfers_pkey"},
    "reserve": set(),
    "create": set(),
    "look": {"cids_pkey", "transfers_pkey", "archived_transfers_pkey"},
    "find": {"transfers_pkey"},
    "release": {"transfers_pkey"},
    "ledger lock": {"ledger_accounts_pkey"},
    "ledger open": set(),
    "ledger look": {"ledger_operations_pkey"},
    "ledger look_undone": {"ledger_operations_pkey"},
    "ledger apply": {"ledger_accounts_pkey"},
    "guild open_members": set(),
    "guild lock_members": {"throttles_pkey"},
    "guild begin": {"transfers_pkey", "pending_transfers_pkey"},
}

# On a table of a hundred thousand accounts, a full read costs as much as finding three thousand of
# them. Only a custom plan for that batch does so; the generic plan does not.
MAY_READ_ALL_ACCOUNTS = StatementCase("ledger lock", 1000)

CUSTOM_PLANS = "SELECT statement, custom_plans::bigint FROM pg_prepared_statements"
MILLION = Path(__file__).with_name("million.sql")

Values = Mapping[StatementCase, Mapping[str, Any]]
Plans = dict[tuple[str, StatementCase], Plan]


@contextmanager
def _database(name: str, template: str) -> Iterator[str]:
    yield create_database(cluster_url(), name, template)
    drop_database(cluster_url(), name)


@pytest.fixture(scope="module")
def values(template: str) -> Values:
    found: dict[StatementCase, Mapping[str, Any]] = {}
    with _database(f"{template}_asked", template) as spoken:
        for size in SIZES:
            found |= {
                a: v
                for a, v in asyncio.run(sent_statements(spoken, size)).items()
                if a.name in {*HOT, "lapse"}
            }
    return found


@pytest.fixture(scope="module")
def plans(template: str, values: Values) -> Iterator[Plans]:
    """The plan of every hot statement, at every stage of filling a store."""
    with _database(f"{template}_filled", template) as filled:
        yield _plans_at_all_stages(filled, values)


def _plans_at_all_stages(database: str, values: Values) -> Plans:
    plans: Plans = {}
    with superuser(database) as connection:
        for table in BIG:
            # Only this test updates the statistics, and not the autovacuum daemon.
            connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
    with _session(database) as early:
        prepare(early, list(values))
        plans |= _planned("empty", early, values)
        for _ in range(RUNS_UNTIL_GENERIC):
            plans |= _planned("kept while empty", early, values)
        _fill(database)
        plans |= _planned("kept from empty to filled", early, values)
    plans |= _fresh("filled, uncounted", database, values)
    with superuser(database) as connection:
        connection.execute("ANALYZE")
    return plans | _fresh("filled", database, values)


def _analyzed_while_empty(database: str, values: Values) -> tuple[Plans, Plans]:
    """The generic plans of a session of the engine: after ANALYZE of empty tables, and after
    ANALYZE of filled ones.
    """
    with superuser(database) as connection:
        connection.execute("VACUUM ANALYZE")
    with _session(database) as early:
        prepare(early, list(values))
        early.execute("SET plan_cache_mode TO force_generic_plan")
        before = _planned("counted while empty", early, values)
        asyncio.run(sent_statements(database, 1000))
        with superuser(database) as connection:
            connection.execute("ANALYZE")
        return before, _planned("counted again", early, values)


def _fill(database: str) -> None:
    with superuser(database) as connection, connection.transaction():
        connection.execute(MILLION.read_text(encoding="utf-8"))


def _fresh(stage: str, database: str, values: Values) -> Plans:
    with _session(database) as connection:
        prepare(connection, list(values))
        plans = _planned(f"{stage}, for these values", connection, values)
        connection.execute("SET plan_cache_mode TO force_generic_plan")
        return plans | _planned(f"{stage}, for any values", connection, values)


def _planned(stage: str, connection: psycopg.Connection, values: Values) -> Plans:
    return {(stage, case): plan_of(connection, case, v) for case, v in values.items()}


def _session(database: str) -> psycopg.Connection:
    """A session with the settings of the pool, except that the test prepares its statements."""
    options = session_options(SCHEMA, StoreLimits())
    return psycopg.connect(database, options=options, autocommit=True, prepare_threshold=None)


def _of(plans: Plans, wanted: StatementCase) -> dict[str, Plan]:
    found = {stage: plan for (stage, case), plan in plans.items() if case == wanted}
    assert len(found) == 7, f"{wanted} was not run at every stage"
    return found


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", HOT)
def test_every_stage_uses_the_intended_index(plans: Plans, name: str, size: int) -> None:
    for stage, plan in _of(plans, StatementCase(name, size)).items():
        assert indexes(plan) == HOT[name], stage


@pytest.mark.parametrize("size", SIZES)
def test_held_transfers_are_found_by_their_ids_at_every_stage(plans: Plans, size: int) -> None:
    """This does not depend on the planner's estimate of a list. The lists themselves are few."""
    for stage, plan in _of(plans, StatementCase("lapse", size)).items():
        used = indexes(plan) - {"handovers_until", "handovers_pkey"}
        assert used == {"transfers_pkey"}, stage
        full = [scan for scan in read_in_full(plan) if "handovers" not in scan]
        assert full == [], stage
        assert compared_in_full(plan) == [], stage


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", HOT)
def test_no_big_table_is_read_in_full(plans: Plans, name: str, size: int) -> None:
    for stage, plan in _of(plans, StatementCase(name, size)).items():
        full = read_in_full(plan)
        if stage == "empty":
            # A custom plan on empty tables may read a whole index, but no table.
            assert not [scan for scan in full if not scan.startswith("Index")], stage
        elif StatementCase(name, size) == MAY_READ_ALL_ACCOUNTS and stage.endswith(
            "for these values"
        ):
            assert set(full) <= {"Index Scan on ledger_accounts"}, stage
        else:
            assert full == [], stage


@pytest.mark.parametrize("name", HOT)
def test_no_batch_is_compared_with_itself_row_by_row(plans: Plans, name: str) -> None:
    for stage, plan in _of(plans, StatementCase(name, 1000)).items():
        assert compared_in_full(plan) == [], stage


@pytest.mark.parametrize("name", HOT)
def test_no_generic_plan_depends_on_the_size_of_the_batch(plans: Plans, name: str) -> None:
    """A generic plan is the same, whichever batch was the first."""
    for stage in ("filled, uncounted, for any values", "filled, for any values"):
        one, many = (plans[stage, StatementCase(name, size)] for size in SIZES)
        assert one == many, stage


def test_a_plan_for_empty_tables_is_replaced_after_the_next_analyze(
    template: str, values: Values
) -> None:
    """Tables that were analyzed while empty look small until they are analyzed again."""
    with _database(f"{template}_counted", template) as database:
        before, after = _analyzed_while_empty(database, values)
    assert [case for (_, case), plan in before.items() if read_in_full(plan)]
    for (stage, asked_), plan in after.items():
        if asked_.name == "lapse":
            continue  # A separate test checks it.
        assert indexes(plan) == HOT[asked_.name], (stage, asked_)
        assert read_in_full(plan) == [], (stage, asked_)


def test_single_transfers_are_not_planned_each_time(database: str) -> None:
    """By default PostgreSQL plans a batch of one each time, which costs as much as the rest."""
    asyncio.run(_single_transfers(database))


async def _single_transfers(database: str) -> None:
    setup = EngineSetup(database, bounds=StoreLimits(connections=1))
    async with running(setup) as engine:
        await run_to_end(engine, deposit(1, 100))
        for _ in range(8):
            await run_to_end(engine, to_remote(1, 10))
        store = engine.parts.store
        assert isinstance(store, PostgresStore)
        [(outside,)] = await store.run("SELECT current_setting('plan_cache_mode')", {})
        custom_plans = dict(await store.run(CUSTOM_PLANS, {}))
    assert outside == "auto", "statements with optional filters need custom plans"
    for name in ("reserve", "create", "record", "ledger lock", "ledger look", "ledger apply"):
        assert custom_plans[text_of(TEXTS[name]).sql.decode()] == 0, name


BACKLOG = 100_000
FEW_BLOCKS = 200


def test_an_older_backlog_of_an_unknown_flow_is_not_read(template: str) -> None:
    """These rows were due before ours, and wait for a process that knows their flow."""
    with _database(f"{template}_unknown", template) as database:
        with superuser(database) as connection:
            connection.execute(OLDER_BACKLOG, {"count": BACKLOG})
            connection.execute("ANALYZE")
        for name, rows in (("claim", 5), ("due", 1)):
            _reads_little(database, StatementCase(name, 1), rows)


def _reads_little(database: str, wanted: StatementCase, rows: int) -> None:
    """The query of a process that knows all flows but that one, with both kinds of plans."""
    values: dict[str, Any] = {"lane": "ledger", "limit": 1024, "lease_s": 10.0}
    values |= {"lanes": ["ledger", "venue"], **table_columns(checksums(FLOWS.values()))}
    for mode in ("force_custom_plan", "force_generic_plan"):
        with _session(database) as connection:
            connection.execute(f"SET plan_cache_mode TO {mode}")
            prepare(connection, [wanted])
            with connection.transaction(force_rollback=True):
                plan = plan_of(connection, wanted, values, "ANALYZE, BUFFERS, FORMAT JSON")
            assert plan["Actual Rows"] == rows, f"{wanted}, {mode}"
            assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < FEW_BLOCKS, mode


OLDER_BACKLOG = """
INSERT INTO transfers (id, owner, flow, state, lane, due_lane, due_at, version, attempts, retries,
                       paged, parties, asset_id, amount, head_hash, created_at, updated_at)
SELECT lpad(to_hex(n), 32, '0')::uuid, 1,
       CASE WHEN n <= %(count)s THEN 'added' ELSE 'internal_transfer' END, 'TARGET_PENDING',
       'ledger', 'ledger', now() - interval '1 hour' + n * interval '1 millisecond', 1, 0, 0, false,
       '{"source": ["remote", "SPOT", 1], "target": ["ledger", "FUNDING", 1]}',
       3, 10, '\\x00', now(), now()
  FROM generate_series(1, %(count)s + 5) AS n
"""
