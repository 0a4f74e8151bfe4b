"""What can be wrong with the transfer pool, seen from the database: for a doctor."""

from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg import sql

from tidegate.core.sql import load

STATEMENTS = load("tidegate.store", "pool_schema.sql")
SHARED_SCHEMA = "tidegate"


def ailments(connection: psycopg.Connection[Any]) -> Iterator[str]:
    """Each in one line, with what to do. Nothing where there are no guilds."""
    if not _one(connection, "there")[0]:
        return
    [home] = _one(connection, "home")
    path = sql.SQL("SET LOCAL search_path TO {}, {}")
    with connection.transaction():
        connection.execute(path.format(sql.Identifier(home), sql.Identifier(SHARED_SCHEMA)))
        waiting, oldest_s = _one(connection, "waiting")
        [differing] = _one(connection, "differing")
    if waiting:
        yield (
            f"pool: {waiting} transfers are due, the oldest for {oldest_s} s,"
            " and nobody takes them: start `tidegate worker` or a coordinator"
        )
    if differing:
        yield (
            f"pool: {differing} transfers differ from the engine's record of them:"
            " `tidegate halt`, and find out who changed them"
        )


def _one(connection: psycopg.Connection[Any], name: str) -> tuple[Any, ...]:
    row: tuple[Any, ...] | None = connection.execute(STATEMENTS[name]).fetchone()
    assert row is not None, f"{name} has one row"
    return row
