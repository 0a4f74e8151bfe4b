"""The database address of a psycopg pool, and the store of the guild economy in it."""

from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg_pool import AsyncConnectionPool

from tidegate.app import Setup
from tidegate.economy.gateway import STATEMENTS

# Arguments of a pool's connections that are not part of the address.
NOT_IN_ADDRESS = frozenset(
    {"autocommit", "prepare_threshold", "row_factory", "cursor_factory", "context"}
)


def address_of(pool: AsyncConnectionPool[Any]) -> str:
    """The address only: an engine opens its own sessions and sets their role and search path."""
    conninfo, kwargs = pool.conninfo, pool.kwargs
    if callable(conninfo) or callable(kwargs):
        raise TypeError("the pool's conninfo and kwargs must be values, not functions")
    arguments = {k: v for k, v in (kwargs or {}).items() if k not in NOT_IN_ADDRESS}
    return make_conninfo(conninfo or "", **arguments)


async def setup_of(pool: AsyncConnectionPool[Any]) -> Setup:
    try:
        async with pool.connection() as connection:
            cursor = await connection.execute(STATEMENTS["home"])
            row = await cursor.fetchone()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        row = None
    if row is None:
        raise RuntimeError(
            "this database has no guild economy: install it with `tidegate migrate --economy`"
        )
    [store] = row.values() if isinstance(row, dict) else row
    return Setup(address_of(pool), store)
