"""The store on PostgreSQL: one schema, reached by the search path of its connections."""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, Self
from uuid import UUID

import psycopg
from psycopg.adapt import Buffer, Loader
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout

from tidegate.core.flow import Flow
from tidegate.core.ports import (
    Birth,
    CidTaken,
    Known,
    StoreFault,
    StoreUnavailable,
)
from tidegate.core.request import Asset
from tidegate.core.sql import load, numbers, texts, uuids
from tidegate.core.transfer import Move, Transfer
from tidegate.store.flow_checks import differing
from tidegate.store.rows import (
    TRANSFER_COLUMNS,
    attempt_columns,
    birth_columns,
    entry_columns,
    party_columns,
    state_columns,
    transfer_from,
    written,
)

SHARED_SCHEMA = "tidegate"
ENGINE_ROLE = "tidegate_engine"
UNIQUE_VIOLATION = "23505"

# Proof that nothing was done and that doing it again may succeed. Everything else is a fault of
# the statement itself, or a lost connection, of which nothing is known.
RETRYABLE = frozenset({"25P03", "25P04", "40001", "40P01", "55P03", "57014"})
RETRYABLE_CLASSES = ("57P0", "53", "08")

STATEMENTS = {
    name: statement.replace("{transfer}", TRANSFER_COLUMNS)
    for name, statement in load("tidegate.store", "queries.sql").items()
}


class Bounds(NamedTuple):
    """How long a session may take for anything, and how many there are."""

    lease_s: float = 10.0
    connections: int = 8
    statement_s: float = 30.0
    lock_s: float = 5.0
    idle_in_transaction_s: float = 10.0
    connection_lost_s: float = 10.0
    pool_wait_s: float = 10.0
    reconnect_s: float = 4.0


class WholeNumber(Loader):
    """Every NUMERIC of ours is whole: an int, without the detour over Decimal."""

    def load(self, data: Buffer) -> int:
        return int(bytes(data))


class PostgresTransaction:
    """An open transaction, in which local systems answer too."""

    def __init__(self, connection: psycopg.AsyncConnection, at_us: int, *, halted: bool) -> None:
        self.connection = connection
        self.at_us = at_us
        self.halted = halted
        self.held: set[Any] = set()

    async def fetch(self, statement: str, values: Mapping[str, object]) -> list[Any]:
        return await _run(self.connection, statement, values)


class PostgresStore:
    """Open it before use: `async with PostgresStore(...) as store`."""

    def __init__(self, conninfo: str, schema: str, bounds: Bounds | None = None) -> None:
        self.schema = schema
        self.bounds = bounds or Bounds()
        self.lease_s = self.bounds.lease_s
        self._pool = AsyncConnectionPool(
            conninfo,
            min_size=1,
            max_size=self.bounds.connections,
            timeout=self.bounds.pool_wait_s,
            # Given up soon and begun anew by whoever asks next: its pauses double without a cap.
            reconnect_timeout=self.bounds.reconnect_s,
            kwargs={
                "autocommit": True,
                "prepare_threshold": 0,
                "options": _session_options(schema, self.bounds),
                "tcp_user_timeout": int(self.bounds.connection_lost_s * 1000),
                "application_name": "tidegate",
            },
            configure=_configure,
            open=False,
        )

    async def __aenter__(self) -> Self:
        try:
            await self._pool.open(wait=True, timeout=self.bounds.pool_wait_s)
        except PoolTimeout as fault:
            raise StoreUnavailable("cannot connect to PostgreSQL; is it running?") from fault
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pool.close()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[PostgresTransaction]:
        async with self._session() as connection:
            at_us, halted = await _begin(connection)
            try:
                yield PostgresTransaction(connection, at_us, halted=halted)
            except BaseException:
                await _roll_back(connection)
                raise
            await _commit(connection)

    async def claim(self, lane: str, limit: int) -> Sequence[Transfer]:
        values = {"lane": lane, "limit": limit, "lease_s": self.lease_s}
        return [transfer_from(row) for row in await self._fetch("claim", values)]

    async def lock(
        self, tx: PostgresTransaction, transfers: Sequence[Transfer]
    ) -> Sequence[Transfer]:
        rows = await tx.fetch(STATEMENTS["lock"], {"ids": uuids(t.id for t in transfers)})
        versions: dict[UUID, int] = dict(rows)
        return [t for t in transfers if versions.get(t.id) == t.version]

    async def record(
        self, tx: PostgresTransaction, moves: Sequence[Move], leased: frozenset[UUID]
    ) -> Sequence[Transfer]:
        rows = [written(move, leased, tx.at_us, move.before.created_us) for move in moves]
        values = {
            "versions": numbers(m.before.version for m in moves),
            **attempt_columns(moves),
            **party_columns(moves),
            **self._columns(moves, rows, leased),
        }
        [(count,)] = await tx.fetch(STATEMENTS["record"], values)
        if count != len(moves):
            raise StoreFault(f"{len(moves)} locked transfers were to move, and {count} did")
        return [row for row, _ in rows]

    async def insert(
        self, tx: PostgresTransaction, births: Sequence[Birth], leased: frozenset[UUID]
    ) -> Sequence[Transfer]:
        moves = [birth.move for birth in births]
        rows = [written(move, leased, tx.at_us, tx.at_us) for move in moves]
        values = {
            **birth_columns(births),
            **attempt_columns(moves),
            **self._columns(moves, rows, leased),
        }
        try:
            await tx.fetch(STATEMENTS["insert"], values)
        except StoreFault as fault:
            if isinstance(fault.__cause__, psycopg.errors.UniqueViolation):
                raise CidTaken("one of these requests is already known") from fault
            raise
        return [row for row, _ in rows]

    def _columns(
        self,
        moves: Sequence[Move],
        rows: Sequence[tuple[Transfer, list[bytes]]],
        leased: frozenset[UUID],
    ) -> dict[str, object]:
        return {
            **state_columns(moves, [row for row, _ in rows], leased, self.lease_s),
            **entry_columns(zip(moves, (hashes for _, hashes in rows), strict=True)),
        }

    async def look(
        self, keys: Sequence[tuple[int, str]]
    ) -> tuple[int, bool, Sequence[Known | None]]:
        values = {"owners": numbers(o for o, _ in keys), "cids": texts(c for _, c in keys)}
        rows = await self._fetch("look", values)
        known = [None if row[2] is None else Known(row[2], transfer_from(row[3:])) for row in rows]
        return rows[0][0], rows[0][1], known

    async def find(self, ids: Sequence[UUID]) -> Sequence[Transfer]:
        return [transfer_from(row) for row in await self._fetch("find", {"ids": uuids(ids)})]

    async def release(self, transfers: Sequence[Transfer]) -> None:
        values = {
            "ids": uuids(t.id for t in transfers),
            "versions": numbers(t.version for t in transfers),
        }
        await self._fetch("release", values)

    async def halted(self) -> bool:
        [(halted,)] = await self._fetch("halted", {})
        return bool(halted)

    async def halt(self, reason: str, actor: str) -> None:
        await self._fetch("halt", {"reason": reason, "actor": actor})

    async def resume(self, reason: str, actor: str) -> None:
        await self._fetch("resume", {"reason": reason, "actor": actor})

    async def assets(self) -> Mapping[str, Asset]:
        return {row[1]: Asset(*row) for row in await self._fetch("assets", {})}

    async def verify(self, flows: Iterable[Flow]) -> None:
        """Refuse to start on tables that were made for other flows."""
        if names := differing(dict(await self._fetch("flows", {})), flows):
            raise StoreFault(
                f"flow {', '.join(names)}: the database has another table; run `tidegate migrate`"
            )

    async def forget_marks(self, core: str) -> None:
        """Drop the marks of processes that are gone; every start would leave one behind."""
        await self._fetch("forget_marks", {"core": core})

    async def floor(self, horizon_s: float) -> UUID:
        """Every id below it is of a transfer that has ended, and older than the horizon."""
        at_us, _, _ = await self.look([(0, "")])
        oldest = UUID(int=max(at_us // 1000 - int(horizon_s * 1000), 0) << 80)
        floor: UUID = min([oldest, *(row[0] for row in await self._fetch("floor", {}))])
        return floor

    async def run(self, statement: str, values: Mapping[str, object]) -> list[Any]:
        """One statement in a transaction of its own, for what lives beside the engine's tables."""
        async with self._session() as connection:
            return await _run(connection, statement, values)

    async def _fetch(self, name: str, values: Mapping[str, object]) -> list[Any]:
        return await self.run(STATEMENTS[name], values)

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[psycopg.AsyncConnection]:
        try:
            connection = await self._pool.getconn()
        except (PoolTimeout, PoolClosed) as fault:
            raise StoreUnavailable("no connection to PostgreSQL could be had") from fault
        except psycopg.OperationalError as fault:
            raise StoreUnavailable(str(fault)) from fault
        try:
            yield connection
        finally:
            await self._pool.putconn(connection)


async def _begin(connection: psycopg.AsyncConnection) -> tuple[int, bool]:
    try:
        # Both travel together: the answer to BEGIN is worth no round trip of its own.
        async with connection.pipeline():
            await connection.execute("BEGIN", prepare=False)
            cursor = await connection.execute(STATEMENTS["begin"])
        [row] = await cursor.fetchall()
    except psycopg.Error as fault:
        await connection.close()
        raise as_fault(fault) from fault
    return row[0], row[1]


async def _commit(connection: psycopg.AsyncConnection) -> None:
    """If this fails by a lost connection, nobody knows whether it happened."""
    try:
        await connection.execute("COMMIT", prepare=False)
    except psycopg.Error as fault:
        raise as_fault(fault) from fault


async def _run(
    connection: psycopg.AsyncConnection, statement: str, values: Mapping[str, object]
) -> list[Any]:
    try:
        # Every statement comes out of a file of the package; values are bound, never pasted.
        cursor = await connection.execute(statement, values or None)
        return await cursor.fetchall() if cursor.description else []
    except psycopg.Error as fault:
        raise as_fault(fault) from fault


def as_fault(fault: psycopg.Error) -> StoreFault:
    """Errors are told apart by SQLSTATE. A connection that is lost has none: try it again."""
    code = fault.sqlstate
    lost = code is None and isinstance(fault, psycopg.OperationalError | psycopg.InterfaceError)
    if lost or (code and (code in RETRYABLE or code.startswith(RETRYABLE_CLASSES))):
        return StoreUnavailable(f"{code or 'connection lost'}: {fault}")
    return StoreFault(f"{code or type(fault).__name__}: {fault}")


async def _roll_back(connection: psycopg.AsyncConnection) -> None:
    """Leave nothing open. A connection that cannot even do this is closed."""
    try:
        await connection.execute("ROLLBACK", prepare=False)
    except psycopg.Error:
        await connection.close()


async def _configure(connection: psycopg.AsyncConnection) -> None:
    connection.adapters.register_loader("numeric", WholeNumber)


def _session_options(schema: str, bounds: Bounds) -> str:
    """What a session is from its first moment: never by SET, which a pooler may give to others."""
    named = schema.replace('"', '""')
    settings = {
        "search_path": f'"{named}",{SHARED_SCHEMA}',
        "role": ENGINE_ROLE,
        "synchronous_commit": "on",
        "statement_timeout": f"{int(bounds.statement_s * 1000)}",
        "lock_timeout": f"{int(bounds.lock_s * 1000)}",
        "idle_in_transaction_session_timeout": f"{int(bounds.idle_in_transaction_s * 1000)}",
        # A plan made on an empty table must still be right for a million rows.
        "enable_seqscan": "off",
        "enable_bitmapscan": "off",
        "random_page_cost": "1.1",
        "timezone": "UTC",
    }
    return " ".join(f"-c {name}={_escaped(value)}" for name, value in settings.items())


def _escaped(value: str) -> str:
    """As the server splits options: a blank or a backslash belongs to the value if so marked."""
    return value.replace("\\", "\\\\").replace(" ", "\\ ")
