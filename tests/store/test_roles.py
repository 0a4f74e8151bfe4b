"""Roles and sessions: the permissions of the engine and the auditor in the database."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tests.conftest import SCHEMA
from tests.store.scenario import EngineSetup, deposit, rows, run_to_end, running, superuser
from tidegate.core.ports import StoreFault
from tidegate.core.sql import texts
from tidegate.flows import FLOWS
from tidegate.store.migrate import migrate
from tidegate.store.postgres import PostgresStore
from tidegate.store.sessions import StoreLimits

APPEND_ONLY = ("history", "ledger_operations", "cids")
BOUNDS = StoreLimits(statement_s=7.0, lock_s=3.0, idle_in_transaction_s=4.0)


async def _filled(database: str) -> None:
    async with running(EngineSetup(database)) as engine:
        await run_to_end(engine, deposit(1, 100))


@contextmanager
def acting_as(role: str, database: str) -> Iterator[psycopg.Connection]:
    with superuser(database) as connection:
        connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
        yield connection


def statements(table: str) -> list[sql.Composed]:
    """Statements that would change or delete rows of a table."""
    name = sql.Identifier(table)
    column = sql.Identifier("owner" if table != "history" else "flow")
    return [
        sql.SQL("UPDATE {} SET {} = {}").format(name, column, column),
        sql.SQL("DELETE FROM {}").format(name),
        sql.SQL("TRUNCATE {}").format(name),
    ]


@pytest.mark.parametrize("table", APPEND_ONLY)
def test_the_engine_can_only_insert_into_append_only_tables(database: str, table: str) -> None:
    asyncio.run(_filled(database))
    before = rows(database, f"SELECT count(*) FROM {table}")
    assert before != [(0,)]
    with acting_as("tidegate_engine", database) as connection:
        for statement in statements(table):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)
    assert rows(database, f"SELECT count(*) FROM {table}") == before


def test_the_engine_cannot_remove_a_transfer_or_change_the_tables(database: str) -> None:
    asyncio.run(_filled(database))
    with acting_as("tidegate_engine", database) as connection:
        for statement in (
            "DELETE FROM transfers",
            "TRUNCATE transfers",
            "DELETE FROM ledger_accounts",
            "DELETE FROM attempts",
            "DELETE FROM halts",
            "INSERT INTO archived_transfers SELECT * FROM every_transfer",
            "UPDATE archived_transfers SET cid_forgotten_at = now()",
            "DELETE FROM archived_transfers",
            "TRUNCATE archived_transfers",
            "INSERT INTO archived_history SELECT * FROM history",
            "UPDATE archived_history SET reason = ''",
            "DELETE FROM archived_history",
            "TRUNCATE archived_history",
            "DROP TABLE transfers",
            "ALTER TABLE history DROP CONSTRAINT flow_rules",
            "ALTER TABLE history DISABLE TRIGGER ALL",
            "CREATE TABLE mine (n integer)",
            "UPDATE migrations SET checksum = ''",
            "UPDATE flow_tables SET checksum = ''",
            "UPDATE flow_rules SET answers = '{}'",
            "INSERT INTO flow_rules VALUES ('mine', '{}', '{}')",
            "DELETE FROM flow_rules",
            "TRUNCATE flow_rules",
            "UPDATE flow_states SET code = 40",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)


def test_the_auditor_can_read_everything_and_write_nothing(database: str) -> None:
    asyncio.run(_filled(database))
    relations = rows(
        database,
        "SELECT oid::regclass::text FROM pg_class WHERE relkind IN ('r', 'v')"
        " AND relnamespace::regnamespace::text IN (%s, 'tidegate', 'trading')",
        SCHEMA,
    )
    assert len(relations) >= 18
    for (relation,) in relations:
        granted = rows(
            database,
            "SELECT kind FROM unnest(%s::text[]) AS kind"
            " WHERE has_table_privilege('tidegate_auditor', %s, kind)",
            ["SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER"],
            relation,
        )
        assert granted == [("SELECT",)], relation
    with acting_as("tidegate_auditor", database) as connection:
        for (relation,) in relations:
            connection.execute(f"SELECT * FROM {relation} LIMIT 1")
        for statement in (
            "INSERT INTO halts (reason, actor) VALUES ('a', 'b')",
            "UPDATE ledger_accounts SET available = 0",
            "CREATE TABLE mine (n integer)",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)


def test_no_role_can_log_in(database: str) -> None:
    found = rows(
        database,
        "SELECT rolname FROM pg_roles WHERE starts_with(rolname, 'tidegate')"
        " AND (rolcanlogin OR rolsuper OR rolcreaterole OR rolcreatedb OR rolbypassrls)",
    )
    assert found == []


async def _settings(database: str, names: list[str]) -> list[dict[str, str]]:
    """The settings of every session of a pool."""
    async with PostgresStore(database, SCHEMA, BOUNDS) as store:
        sessions = []
        async with store.session() as first, store.session() as second:
            for pipe in (first, second):
                sent = pipe.send(
                    "SELECT n, current_setting(n) FROM unnest(%(names)s::text[]) AS n",
                    {"names": texts(names)},
                )
                await pipe.sync()
                sessions.append(dict(pipe.rows(sent)))
        return sessions


def test_every_session_of_the_pool_is_bounded_and_durable(database: str) -> None:
    wanted = {
        "role": "tidegate_engine",
        "synchronous_commit": "on",
        "statement_timeout": "7s",
        "lock_timeout": "3s",
        "idle_in_transaction_session_timeout": "4s",
        "TimeZone": "UTC",
        "enable_seqscan": "off",
        "enable_bitmapscan": "off",
        "enable_hashjoin": "on",
        "plan_cache_mode": "auto",
        "transaction_isolation": "read committed",
        "application_name": "tidegate",
    }
    assert asyncio.run(_settings(database, list(wanted))) == [wanted, wanted]


def test_every_session_of_the_pool_searches_its_store_first(database: str) -> None:
    async def seen() -> list[object]:
        async with PostgresStore(database, SCHEMA) as store:
            return await store.run(
                "SELECT current_user::text, session_user <> current_user,"
                " current_schemas(false)::text[]",
                {},
            )

    assert asyncio.run(seen()) == [("tidegate_engine", True, [SCHEMA, "tidegate"])]


def test_a_session_of_the_pool_has_only_the_permissions_of_its_role(database: str) -> None:
    async def rewrite() -> None:
        async with PostgresStore(database, SCHEMA) as store:
            await store.run("UPDATE history SET reason = ''", {})

    with pytest.raises(StoreFault, match="42501") as caught:
        asyncio.run(rewrite())
    assert not caught.value.retryable


def test_everything_belongs_to_the_migrator(database: str) -> None:
    with psycopg.connect(database) as session:
        owners = session.execute(
            "SELECT DISTINCT pg_get_userbyid(relowner) FROM pg_class"
            " JOIN pg_namespace ON pg_namespace.oid = relnamespace"
            " WHERE nspname IN (%s, 'tidegate', 'trading') AND relkind IN ('r', 'v')",
            (SCHEMA,),
        ).fetchall()
    assert owners == [("tidegate_migrator",)]


def test_a_user_who_is_not_a_superuser_can_migrate(database: str) -> None:
    """A member of the migrator's role can migrate a database that its owner has prepared once."""
    migrate(database, SCHEMA, FLOWS.values(), economy=True)
    with psycopg.connect(database, autocommit=True) as session:
        session.execute("DROP ROLE IF EXISTS deployer")
        session.execute("CREATE ROLE deployer LOGIN IN ROLE tidegate_migrator")
    try:
        assert migrate(
            make_conninfo(database, user="deployer"), "another", FLOWS.values(), economy=True
        )
    finally:
        with psycopg.connect(database, autocommit=True) as session:
            session.execute("DROP ROLE deployer")
