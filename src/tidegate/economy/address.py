"""Where a psycopg pool leads: the address that its connections have, and the guilds' store."""

from typing import Any

from psycopg.conninfo import make_conninfo
from psycopg_pool import AsyncConnectionPool

from tidegate.app import Setup
from tidegate.economy.gateway import STATEMENTS

# What a pool gives its connections besides where they lead.
NOT_OF_THE_ADDRESS = frozenset(
    {"autocommit", "prepare_threshold", "row_factory", "cursor_factory", "context"}
)


def address_of(pool: AsyncConnectionPool[Any]) -> str:
    """An engine has sessions of its own: their role and search path are set as they begin."""
    conninfo, kwargs = pool.conninfo, pool.kwargs
    if callable(conninfo) or callable(kwargs):
        raise TypeError("a pool whose address is worked out anew each time cannot be followed")
    named = {k: v for k, v in (kwargs or {}).items() if k not in NOT_OF_THE_ADDRESS}
    return make_conninfo(conninfo or "", **named)


async def setup_of(pool: AsyncConnectionPool[Any]) -> Setup:
    async with pool.connection() as connection:
        cursor = await connection.execute(STATEMENTS["home"])
        row = await cursor.fetchone()
    assert row is not None, "this database has no guild economy; run `tidegate migrate`"
    [store] = row.values() if isinstance(row, dict) else row
    return Setup(address_of(pool), store)
