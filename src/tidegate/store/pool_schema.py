"""Checks of the transfer pool in the database, for `tidegate doctor`."""

from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg import sql

from tidegate.core.sql import load
from tidegate.store.postgres import PostgresStore

STATEMENTS = load("tidegate.store", "pool_schema.sql")
SHARED_SCHEMA = "tidegate"


def pool_problems(connection: psycopg.Connection[Any]) -> Iterator[str]:
    """Yield each problem with what to do, as one line. None without the guild economy."""
    if not _row(connection, "economy_exists")[0]:
        return
    [home] = _row(connection, "home")
    path = sql.SQL("SET LOCAL search_path TO {}, {}")
    with connection.transaction():
        connection.execute(path.format(sql.Identifier(home), sql.Identifier(SHARED_SCHEMA)))
        waiting, oldest_s = _row(connection, "waiting")
        [differing] = _row(connection, "differing")
    if waiting:
        yield (
            f"pool: {waiting} transfers are due, the oldest for {oldest_s} s,"
            " and no process takes them: start `tidegate worker` or a coordinator"
        )
    if differing:
        yield (
            f"pool: {differing} transfers differ from the engine's record of them:"
            " run `tidegate halt`, and find out what changed them"
        )


async def is_installed(store: PostgresStore) -> bool:
    """Whether the guild economy is installed for this store."""
    [(exists,)] = await store.run(STATEMENTS["economy_exists"], {})
    if not exists:
        return False
    [(home,)] = await store.run(STATEMENTS["home"], {})
    return bool(home == store.schema)


def _row(connection: psycopg.Connection[Any], name: str) -> tuple[Any, ...]:
    row: tuple[Any, ...] | None = connection.execute(STATEMENTS[name]).fetchone()
    assert row is not None, f"statement {name} must return one row"
    return row
