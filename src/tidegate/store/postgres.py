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
    Begun,
    Behind,
    Birth,
    CidTaken,
    Known,
    StoreFault,
    StoreUnavailable,
    nothing,
)
from tidegate.core.request import Asset
from tidegate.core.sql import load, numbers, texts, uuids
from tidegate.core.transfer import Move, Transfer
from tidegate.store.flow_checks import differing
from tidegate.store.pipe import Pipe, Reply
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
    """How long a session may take for anything, how many there are, and how they plan."""

    lease_s: float = 10.0
    connections: int = 8
    statement_s: float = 30.0
    lock_s: float = 5.0
    idle_in_transaction_s: float = 10.0
    connection_lost_s: float = 10.0
    pool_wait_s: float = 10.0
    reconnect_s: float = 4.0
    plans: str = "force_generic_plan"  # `auto` for a PostgreSQL that is spread over many nodes.


class WholeNumber(Loader):
    """Every NUMERIC of ours is whole: an int, without the detour over Decimal."""

    def load(self, data: Buffer) -> int:
        return int(bytes(data))


class Session(psycopg.AsyncConnection[Any]):
    """A connection of the pool, and the pipe through which all of its statements go."""

    pipe: Pipe

    async def close(self) -> None:
        if hasattr(self, "pipe"):
            self.pipe.deaf()
        await super().close()


class PostgresTransaction:
    """An open transaction, in which local systems answer too.

    `send` only puts a statement beside those that wait already. Whoever waits for the rows of one
    lets all of them go. What fails is told then, at the COMMIT at the latest; the server skips
    whatever follows it, so that nothing of all this has happened.
    """

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self.held: set[Any] = set()
        self.locking: list[tuple[Sequence[Any], Reply]] = []
        self.looking: tuple[Sequence[Any], Reply] | None = None
        self._begun: Begun | Reply | None = None

    def begin(self, plans: str) -> None:
        self._command(b"BEGIN")
        self._begun = self.send(STATEMENTS["begin"], {"plans": plans})

    async def begun(self) -> Begun:
        if isinstance(self._begun, Reply):
            [row] = await self.rows(self._begun)
            self._begun = Begun(row[0], row[1])
        assert self._begun is not None, "this transaction was not begun here"
        return self._begun

    def send(self, statement: str, values: Mapping[str, object]) -> Reply:
        try:
            return self._pipe.send(statement, values)
        except psycopg.Error as fault:
            raise as_fault(fault) from fault

    async def rows(self, reply: Reply) -> list[Any]:
        if reply.result is None:
            await self._sync()
        return self._pipe.rows(reply)

    async def fetch(self, statement: str, values: Mapping[str, object]) -> list[Any]:
        return await self.rows(self.send(statement, values))

    async def post(self, statement: str, values: Mapping[str, object]) -> None:
        self.send(statement, values)

    async def commit(self) -> None:
        committed = self._command(b"COMMIT")
        await self._sync()
        assert committed.result is not None
        status = committed.result.command_status
        if status != b"COMMIT":
            raise StoreFault(f"COMMIT was answered by {status!r}")

    def _command(self, sql: bytes) -> Reply:
        try:
            return self._pipe.command(sql)
        except psycopg.Error as fault:
            raise as_fault(fault) from fault

    async def _sync(self) -> None:
        try:
            await self._pipe.sync()
        except psycopg.Error as fault:
            raise as_fault(fault) from fault


class PostgresStore:
    """Open it before use: `async with PostgresStore(...) as store`."""

    pipe: type[Pipe] = Pipe  # What every session speaks through.

    def __init__(self, conninfo: str, schema: str, bounds: Bounds | None = None) -> None:
        self.schema = schema
        self.bounds = bounds or Bounds()
        self.lease_s = self.bounds.lease_s
        # The pool makes sessions, and makes new ones of those that are lost. Who is done with one
        # leaves it here for the next: the pool's own door costs more than a statement.
        self._idle: list[Session] = []
        self._waiting = 0  # For the pool.
        self._pool = AsyncConnectionPool(
            conninfo,
            connection_class=Session,
            min_size=1,
            max_size=self.bounds.connections,
            timeout=self.bounds.pool_wait_s,
            # Given up soon and begun anew by whoever asks next: its pauses double without a cap.
            reconnect_timeout=self.bounds.reconnect_s,
            kwargs={
                "autocommit": True,
                "options": session_options(schema, self.bounds),
                **lost_after(self.bounds.connection_lost_s),
                "application_name": "tidegate",
            },
            configure=self._configure,
            open=False,
        )

    async def __aenter__(self) -> Self:
        try:
            await self._pool.open(wait=True, timeout=self.bounds.pool_wait_s)
        except PoolTimeout as fault:
            raise StoreUnavailable("cannot connect to PostgreSQL; is it running?") from fault
        return self

    async def __aexit__(self, *_: object) -> None:
        while self._idle:
            await self._give_back(self._idle.pop())
        await self._pool.close()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[PostgresTransaction]:
        async with self.session() as pipe:
            tx = PostgresTransaction(pipe)
            try:
                tx.begin(self.bounds.plans)
                yield tx
                await tx.commit()
            except BaseException:
                await pipe.roll_back()
                raise

    async def claim(self, lane: str, limit: int) -> Sequence[Transfer]:
        values = {"lane": lane, "limit": limit, "lease_s": self.lease_s}
        return [transfer_from(row) for row in await self._fetch("claim", values)]

    async def lock(
        self, tx: PostgresTransaction, transfers: Sequence[Transfer], behind: Behind = nothing
    ) -> Sequence[Transfer]:
        sent = tx.send(STATEMENTS["lock"], {"ids": uuids(t.id for t in transfers)})
        await behind()
        versions: dict[UUID, int] = dict(await tx.rows(sent))
        return [t for t in transfers if versions.get(t.id) == t.version]

    async def record(
        self, tx: PostgresTransaction, moves: Sequence[Move], leased: Sequence[bool]
    ) -> Sequence[Transfer]:
        at_us, _ = await tx.begun()
        rows = [
            written(move, held, at_us, move.before.created_us)
            for move, held in zip(moves, leased, strict=True)
        ]
        values = {
            "count": len(moves),
            **attempt_columns(moves),
            **party_columns(moves),
            **self._columns(moves, rows, leased),
        }
        await tx.post(STATEMENTS["record"], values)
        return [row for row, _ in rows]

    async def insert(
        self, tx: PostgresTransaction, births: Sequence[Birth], leased: Sequence[bool]
    ) -> Sequence[Transfer]:
        moves = [birth.move for birth in births]
        at_us, _ = await tx.begun()
        rows = [written(move, held, at_us, at_us) for move, held in zip(moves, leased, strict=True)]
        values = {
            **birth_columns(births),
            **attempt_columns(moves),
            **self._columns(moves, rows, leased),
        }
        await tx.post(STATEMENTS["insert"], values)
        return [row for row, _ in rows]

    def _columns(
        self,
        moves: Sequence[Move],
        rows: Sequence[tuple[Transfer, list[bytes]]],
        leased: Sequence[bool],
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
        known: list[Known | None] = [None] * len(keys)
        for _, _, place, fingerprint, *row in rows:
            if place is not None:
                known[place - 1] = Known(fingerprint, transfer_from(row))
        return rows[0][0], rows[0][1], known

    async def find(self, ids: Sequence[UUID]) -> Sequence[Transfer]:
        return [transfer_from(row) for row in await self._fetch("find", {"ids": uuids(ids)})]

    async def ended(self, ids: Sequence[UUID]) -> Sequence[Transfer]:
        return [transfer_from(row) for row in await self._fetch("ended", {"ids": uuids(ids)})]

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
        async with self.session() as pipe:
            return await PostgresTransaction(pipe).fetch(statement, values)

    async def _fetch(self, name: str, values: Mapping[str, object]) -> list[Any]:
        return await self.run(STATEMENTS[name], values)

    async def _configure(self, session: Session) -> None:
        session.adapters.register_loader("numeric", WholeNumber)
        session.pipe = self.pipe(session)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Pipe]:
        while self._idle and not self._idle[-1].pipe.at_rest:
            await self._give_back(self._idle.pop())  # The server has left it meanwhile.
        session = self._idle.pop() if self._idle else await self._new()
        try:
            yield session.pipe
        finally:
            if session.pipe.at_rest and not self._waiting and not self._pool.closed:
                self._idle.append(session)
            else:
                await self._give_back(session)

    async def _new(self) -> Session:
        """From the pool, or from who is done first, if there are as many as there may be."""
        self._waiting += 1
        try:
            return await self._pool.getconn()
        except (PoolTimeout, PoolClosed) as fault:
            raise StoreUnavailable("no connection to PostgreSQL could be had") from fault
        except psycopg.OperationalError as fault:
            raise StoreUnavailable(str(fault)) from fault
        finally:
            self._waiting -= 1

    async def _give_back(self, session: Session) -> None:
        if not session.pipe.at_rest:
            await session.close()  # The pool will make a new one.
        await self._pool.putconn(session)


def as_fault(fault: psycopg.Error) -> StoreFault:
    """Errors are told apart by SQLSTATE. A connection that is lost has none: try it again."""
    code = fault.sqlstate
    lost = code is None and isinstance(fault, psycopg.OperationalError | psycopg.InterfaceError)
    if code == UNIQUE_VIOLATION:
        return CidTaken(f"{code}: {fault}")
    if lost or (code and (code in RETRYABLE or code.startswith(RETRYABLE_CLASSES))):
        return StoreUnavailable(f"{code or 'connection lost'}: {fault}")
    return StoreFault(f"{code or type(fault).__name__}: {fault}")


def lost_after(seconds: float) -> dict[str, int]:
    """A host that vanishes says nothing. Who waits for its answer has nothing under way that it
    could fail to confirm, so that the kernel must ask whether it is still there.
    """
    return {
        "tcp_user_timeout": int(seconds * 1000),
        "keepalives_idle": max(int(seconds / 2), 1),
        "keepalives_interval": 1,
    }


def session_options(schema: str, bounds: Bounds, role: str = ENGINE_ROLE) -> str:
    """What a session is from its first moment: never by SET, which a pooler may give to others."""
    named = schema.replace('"', '""')
    settings = {
        "search_path": f'"{named}",{SHARED_SCHEMA}',
        "role": role,
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
