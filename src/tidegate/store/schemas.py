"""Schemas and names of a database that is being migrated, and the refusal to go on."""

from collections.abc import Sequence

import psycopg
from psycopg import sql

MAX_IDENTIFIER_BYTES = 63


class MigrationRefused(Exception):
    """The database is not what these files made, or not what this program needs."""


def identifier(name: str) -> sql.Identifier:
    """A longer name is cut off by the server, and would be another's that begins like it."""
    if len(name.encode()) > MAX_IDENTIFIER_BYTES:
        raise MigrationRefused(f"{name} is longer than {MAX_IDENTIFIER_BYTES} bytes")
    return sql.Identifier(name)


def set_path(connection: psycopg.Connection, path: Sequence[str]) -> None:
    """For the rest of the transaction."""
    names = sql.SQL(", ").join(map(sql.Identifier, path))
    connection.execute(sql.SQL("SET LOCAL search_path TO {}").format(names))
