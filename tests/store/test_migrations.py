"""Migrations: each is applied once and in order, or refused with a reason."""

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from psycopg import sql

from tests.conftest import SCHEMA
from tests.store.scenario import (
    EngineSetup,
    balances,
    deposit,
    rows,
    run_to_end,
    running,
    superuser,
    to_savings,
)
from tidegate.core.ports import StoreFault
from tidegate.flows import FLOWS
from tidegate.store import migrate as module
from tidegate.store.migrate import Migration, migrate, migrations
from tidegate.store.schemas import MigrationRefused

pytestmark = pytest.mark.slow

ODD_NAMES = [
    'Store "two"',
    "a b",
    "Größe",
    "100%",
    "x'; DROP SCHEMA tidegate; --",
    "back\\slash",
    "a,b",
]
EXPECTED = [
    "tidegate: 0001_begin",
    "tidegate: 0002_halts",
    "store_one: 0001_begin",
    "store_one: 0002_specification_views",
    "store_one: 0003_reading",
    "store_one: 0004_resolutions",
    "store_one: 0005_archive",
    "store_one: 0006_expiry",
    "store_one: 0007_lane_troubles",
    "store_one: 0008_due_by_flow",
    "store_one: 0009_fees",
    "store_one: 0010_identity_and_floor",
    "store_one: 0011_clock",
    "store_one: 0012_audit_sweep",
    "store_one: 0013_inbox",
    "store_one: 0014_told_pages",
    "store_one: 0015_inbox_bounds",
    "store_one: 0016_inbox_flows",
    "store_one: 0017_kept_plans",
    "store_one: 0018_older_records",
    "store_one: 0019_fewer_checks",
    "store_one: 0020_fewer_account_checks",
    "store_one: 0021_fewer_operation_checks",
    "store_one: 0022_handovers",
    "economy: 0001_begin",
    "economy: 0002_doors",
    "economy: 0003_ids",
    "economy: 0004_inbox",
    "economy: 0005_expiry_bounds",
    "economy: 0006_kept_plans",
    "economy: 0007_setwise",
    "economy: 0008_batches",
    "store_one: flow internal_transfer",
    "store_one: flow deposit",
    "store_one: flow external_withdrawal",
]


def applied(database: str, schema: str = SCHEMA) -> list[tuple[int, str]]:
    return rows(database, "SELECT number, name FROM migrations ORDER BY at, number", schema=schema)


def tables(database: str, schema: str) -> set[str]:
    found = rows(
        database,
        "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace",
        sql.Identifier(schema).as_string(),
        schema=schema,
    )
    return {name for (name,) in found}


def test_a_fresh_database_is_migrated_in_order(unmigrated: str) -> None:
    assert migrate(unmigrated, SCHEMA, FLOWS.values(), economy=True)[: len(EXPECTED)] == EXPECTED
    ours = [(migration.number, migration.name) for migration in migrations("store")]
    assert applied(unmigrated) == ours
    assert [number for number, _ in ours] == list(range(1, len(ours) + 1))
    assert applied(unmigrated, "tidegate") == [(1, "0001_begin"), (2, "0002_halts")]


def test_a_second_run_applies_nothing(unmigrated: str) -> None:
    migrate(unmigrated, SCHEMA, FLOWS.values(), economy=True)
    before = rows(unmigrated, "SELECT number, name, checksum, at FROM migrations ORDER BY number")
    assert migrate(unmigrated, SCHEMA, FLOWS.values(), economy=True) == []
    assert (
        rows(unmigrated, "SELECT number, name, checksum, at FROM migrations ORDER BY number")
        == before
    )


def test_numbers_are_unique_and_start_at_one() -> None:
    for folder in ("shared", "store", "economy"):
        found = migrations(folder)
        assert [m.number for m in found] == list(range(1, len(found) + 1))
        assert all(m.name.startswith(f"{m.number:04d}_") for m in found)


@pytest.mark.parametrize("schema", [SCHEMA, "tidegate"])
def test_a_file_changed_after_it_was_applied_is_refused_by_name(database: str, schema: str) -> None:
    with superuser(database, schema) as connection:
        connection.execute("UPDATE migrations SET checksum = 'other' WHERE number = 1")
    with pytest.raises(MigrationRefused, match="0001_begin was changed"):
        migrate(database, SCHEMA, FLOWS.values(), economy=True)


@pytest.mark.parametrize("schema", [SCHEMA, "tidegate"])
def test_a_migration_that_this_version_does_not_know_is_refused(database: str, schema: str) -> None:
    with superuser(database, schema) as connection:
        connection.execute("INSERT INTO migrations VALUES (9999, '9999_later', 'x')")
    with pytest.raises(MigrationRefused, match=f"schema {schema} has migration 9999"):
        migrate(database, SCHEMA, FLOWS.values(), economy=True)


def test_concurrent_migrations_apply_everything_once(unmigrated: str) -> None:
    with ThreadPoolExecutor(4) as workers:
        runs = list(
            workers.map(
                lambda _: migrate(unmigrated, SCHEMA, FLOWS.values(), economy=True), range(4)
            )
        )
    counted = Counter(name for run in runs for name in run)
    assert set(counted.values()) == {1}
    assert set(EXPECTED) <= counted.keys()


def test_a_failing_migration_leaves_nothing_behind(database: str) -> None:
    broken = Migration(99, "0099_broken", "CREATE TABLE half (n integer); SELECT 1 / 0;")
    before = tables(database, SCHEMA)
    with psycopg.connect(database, autocommit=True) as connection:
        with pytest.raises(psycopg.errors.DivisionByZero):
            module._apply(connection, (SCHEMA, "tidegate"), broken)
        assert tables(database, SCHEMA) == before
        assert 99 not in [number for number, _ in applied(database)]

        fixed = broken._replace(statements="CREATE TABLE whole (n integer);")
        module._apply(connection, (SCHEMA, "tidegate"), fixed)
    assert tables(database, SCHEMA) == before | {"whole"}
    assert applied(database)[-1] == (99, "0099_broken")


def test_tables_of_later_migrations_can_be_read_by_the_reading_roles(database: str) -> None:
    later = Migration(99, "0099_later", "CREATE TABLE later (n integer);")
    with psycopg.connect(database, autocommit=True) as connection:
        module._apply(connection, (SCHEMA, "tidegate"), later)
    for role in ("tidegate_engine", "tidegate_auditor"):
        privilege = "SELECT has_table_privilege(%s, 'later', 'SELECT')"
        assert rows(database, privilege, role) == [(True,)]


def test_a_failing_flow_leaves_no_flow_of_the_run_behind(unmigrated: str) -> None:
    class Broken:
        """A flow with a name and without a table: to read it raises AttributeError."""

        name = "broken"

    with pytest.raises(AttributeError):
        migrate(unmigrated, SCHEMA, [*FLOWS.values(), Broken()], economy=True)  # type: ignore[list-item]
    assert rows(unmigrated, "SELECT flow FROM flow_tables") == []
    assert rows(unmigrated, "SELECT flow FROM flow_rules") == []
    assert rows(unmigrated, "SELECT conname FROM pg_constraint WHERE conname = 'flow_rules'") == []


async def _deposit_and_transfer(database: str, schema: str, owner: int) -> None:
    async with running(EngineSetup(database, schema=schema)) as engine:
        await run_to_end(engine, deposit(owner, 100))
        assert (await run_to_end(engine, to_savings(owner, 30))).state == "COMMITTED"


def test_two_stores_work_side_by_side_and_the_view_shows_the_first(database: str) -> None:
    again = migrate(database, "store_two", FLOWS.values(), economy=True)
    assert not [name for name in again if name.startswith("tidegate:")]
    for owner, schema in ((1, SCHEMA), (2, "store_two")):
        asyncio.run(_deposit_and_transfer(database, schema, owner))
        assert balances(database, owner, schema) == {"OUTSIDE": -100, "FUNDING": 70, "SAVINGS": 30}
    assert balances(database, 2) == {}
    assert balances(database, 1, "store_two") == {}
    assert rows(database, "SELECT user_id FROM trading.transfers") == [(1,)]
    assert rows(database, "SELECT user_id FROM transfers_tb") == [(1,)]
    assert rows(database, "SELECT user_id FROM transfers_tb", schema="store_two") == [(2,)]


@pytest.mark.parametrize("schema", ODD_NAMES)
def test_a_store_may_have_any_name(database: str, schema: str) -> None:
    migrate(database, schema, FLOWS.values(), economy=True)
    assert migrate(database, schema, FLOWS.values(), economy=True) == []
    assert applied(database, schema) == applied(database)
    assert tables(database, schema) == tables(database, SCHEMA)


def test_an_engine_works_on_stores_of_any_name(database: str) -> None:
    for owner, schema in enumerate(ODD_NAMES, start=1):
        migrate(database, schema, FLOWS.values(), economy=True)
        asyncio.run(_deposit_and_transfer(database, schema, owner))
        held = balances(database, owner, schema)
        assert held == {"OUTSIDE": -100, "FUNDING": 70, "SAVINGS": 30}


async def _start(database: str) -> None:
    async with running(EngineSetup(database)):
        raise AssertionError("the engine started")


def test_a_store_without_the_flows_is_refused_at_the_start(unmigrated: str) -> None:
    migrate(unmigrated, SCHEMA, [])
    with pytest.raises(
        StoreFault, match="has another version of this flow; run `tidegate migrate`"
    ):
        asyncio.run(_start(unmigrated))


def test_a_store_that_is_older_than_the_program_is_refused_at_the_start(
    unmigrated: str,
) -> None:
    needed = migrations("store")[-1]
    refused = f"needs its migration {needed.name}; run `tidegate migrate`"
    with pytest.raises(StoreFault, match=refused):
        asyncio.run(_start(unmigrated))
    migrate(unmigrated, SCHEMA, FLOWS.values(), economy=True)
    with psycopg.connect(unmigrated) as connection:
        table = sql.Identifier(SCHEMA, "migrations")
        forget = sql.SQL("DELETE FROM {} WHERE number = %s").format(table)
        connection.execute(forget, (needed.number,))
    with pytest.raises(StoreFault, match=refused):
        asyncio.run(_start(unmigrated))


def test_the_guild_economy_is_installed_only_where_it_is_wanted(unmigrated: str) -> None:
    assert [n for n in migrate(unmigrated, SCHEMA, FLOWS.values()) if n.startswith("economy")] == []
    later = migrate(unmigrated, SCHEMA, FLOWS.values(), economy=True)
    assert later == [name for name in EXPECTED if name.startswith("economy")]
    assert migrate(unmigrated, SCHEMA, FLOWS.values()) == [], "it stays, and is kept up to date"
