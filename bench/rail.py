"""What the literal protocol and the peers move money with: plain SQL, and the trading core."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol
from uuid import UUID

from bench.spec import ASSET, Spec
from tidegate.core.answers import Done, Rejected
from tidegate.core.flow import Verb
from tidegate.core.kind import Party
from tidegate.core.transfer import Question
from tidegate.systems.trading import CoreCaller, KnownCore, TradingCoreClient, dial

MOST_CONNECTIONS = 32  # More than this, and the sessions only wait for each other.


class Sql(Protocol):
    """One statement, which commits by itself."""

    async def run(self, statement: str, *values: Any) -> list[Any]: ...


class PsycopgSql:
    def __init__(self, pool: Any) -> None:
        self._pool = pool

    async def run(self, statement: str, *values: Any) -> list[Any]:
        async with self._pool.connection() as connection:
            cursor = connection.cursor()
            await cursor.execute(statement, values)
            rows: list[Any] = await cursor.fetchall() if cursor.description else []
            return rows


class AsyncpgSql:
    def __init__(self, pool: Any) -> None:
        self._pool = pool

    async def run(self, statement: str, *values: Any) -> list[Any]:
        rows: list[Any] = await self._pool.fetch(statement, *values)
        return rows


@asynccontextmanager
async def open_sql(spec: Spec) -> AsyncIterator[Sql]:
    """With the driver that the case names, and a pool of the size that suits it best."""
    size = min(spec.inflight, MOST_CONNECTIONS)
    if spec.driver == "asyncpg":
        import asyncpg  # noqa: PLC0415  It is installed for the benchmark only.

        async with asyncpg.create_pool(spec.database, min_size=size, max_size=size) as pool:
            yield AsyncpgSql(pool)
    else:
        from psycopg import AsyncRawCursor  # noqa: PLC0415
        from psycopg_pool import AsyncConnectionPool  # noqa: PLC0415

        settings = {"autocommit": True, "prepare_threshold": 0, "cursor_factory": AsyncRawCursor}
        async with AsyncConnectionPool(
            spec.database, min_size=size, max_size=size, kwargs=settings
        ) as pool:
            await pool.wait()
            yield PsycopgSql(pool)


class Core:
    """The same trading core that Tidegate asks, through the same client, one question at a time."""

    def __init__(self, trading: TradingCoreClient) -> None:
        self._trading = trading

    async def ask(self, transfer_id: UUID, verb: Verb, owner: int, amount: int) -> bool:
        """Whether it was done. An operation's key is the transfer and the verb."""
        version = 0 if verb is Verb.DEBIT else 1
        party = Party("core", "SPOT", owner)
        [answer] = await self._trading.ask(
            [Question(transfer_id, version, verb, party, ASSET, amount)]
        )
        match answer:
            case Done():
                return True
            case Rejected():
                return False
            case _:
                raise RuntimeError(f"the core says {answer}")


@asynccontextmanager
async def open_core(spec: Spec) -> AsyncIterator[Core]:
    async with open_trading(spec.core) as trading:
        yield Core(trading)


BINDING = "BENCH_BINDING"  # Of the environment: the store and its place.


@asynccontextmanager
async def open_trading(address: str) -> AsyncIterator[TradingCoreClient]:
    """A client that greets the core as the store of this run; without a binding, as no store."""
    store, _, place = os.environ.get(BINDING, "").partition(" ")

    async def recalled() -> KnownCore:
        return KnownCore(store, place, frozenset(range(1, 1_000)))

    trading = TradingCoreClient("core", dial(address), CoreCaller(f"bench-{os.getpid()}"), recalled)
    try:
        yield trading
    finally:
        await trading.close()
