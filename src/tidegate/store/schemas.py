"""Schemas and identifiers of a database that is migrated, and the refusal of a migration."""

from collections.abc import Sequence

import psycopg
from psycopg import sql

MAX_IDENTIFIER_BYTES = 63


class MigrationRefused(Exception):
    """The database is not as the migrations left it, or not as this program needs it."""


def identifier(name: str) -> sql.Identifier:
    """Refuse a name that is too long. The server would cut it off, and two names with the same
    beginning would become the same.
    """
    if len(name.encode()) > MAX_IDENTIFIER_BYTES:
        raise MigrationRefused(f"{name} is longer than {MAX_IDENTIFIER_BYTES} bytes")
    return sql.Identifier(name)


def set_path(connection: psycopg.Connection, path: Sequence[str]) -> None:
    """Set the search path for the rest of the transaction."""
    names = sql.SQL(", ").join(map(sql.Identifier, path))
    connection.execute(sql.SQL("SET LOCAL search_path TO {}").format(names))
