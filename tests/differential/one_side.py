"""One session on one side: it does a statement when it is its turn, and tells what came of it."""

import asyncio
from collections.abc import Hashable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NamedTuple

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.pq.abc import PGresult

from tests.conftest import SCHEMA
from tidegate.core.ports import CommitUnknown
from tidegate.store.memory_store import MemoryStore
from tidegate.store.memory_tables import MemoryTables
from tidegate.store.memory_transaction import TwinTransaction
from tidegate.store.pipeline import Pipeline, StatementReply
from tidegate.store.postgres import PostgresStore
from tidegate.store.sessions import StoreLimits
from tidegate.store.transaction import STATEMENTS
from tidegate.systems.guild.postgres import STATEMENTS as GUILD
from tidegate.systems.ledger.postgres import STATEMENTS as LEDGER

# Long past any run: here only the scheduler ends a wait, and never a timer.
FOREVER_S = 600.0
LEASE_S = 10.0
BEGINNING_US = 1_800_000_000_000_000

# Found before the server's own, so that the statements, unchanged, tell the time we say it is.
CLOCK = f"""
CREATE OR REPLACE FUNCTION {SCHEMA}.now() RETURNS timestamptz LANGUAGE sql STABLE AS $$
    SELECT to_timestamp(0) + current_setting('differential.now_us')::bigint * interval '1 us'
$$;
"""
# The guild's functions have a path of their own, in which the server's own would be found first.
PATHS = f"""
DO $$
DECLARE
    met regprocedure;
BEGIN
    FOR met IN SELECT oid FROM pg_proc
                WHERE pronamespace = 'economy'::regnamespace AND proconfig IS NOT NULL
    LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path TO economy, {SCHEMA}, tidegate,'
                       ' pg_catalog', met);
    END LOOP;
END
$$
"""
SET_CLOCK = "SELECT set_config('differential.now_us', %(now_us)s, false)"


class Fate(Enum):
    """What becomes of a statement that is let go."""

    DONE = auto()
    REPLY_LOST = auto()  # Of a COMMIT: it happened, and nobody is told.


class Event(NamedTuple):
    """An operation that was finished, and what it returned or raised."""

    operation: str
    about: str
    result: object


class Clock:
    """The one time of both sides."""

    def __init__(self) -> None:
        self.now_us = BEGINNING_US

    def seconds(self) -> float:
        return self.now_us / 1_000_000


@dataclass(eq=False)
class Seat:
    name: str
    clock: Clock
    told: list[Event] = field(default_factory=list)
    wants: frozenset[tuple[str, Hashable]] = frozenset()  # What its operation may wait for.
    next: str = ""
    line: "Line | None" = None
    tx: TwinTransaction | None = None
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    finished: bool = False
    _turn: "asyncio.Future[Fate] | None" = None

    async def arrive(self, statement: str) -> Fate:
        """Where every statement starts: nothing leaves before it is this session's turn."""
        self.next = statement
        self._turn = asyncio.get_running_loop().create_future()
        self.stopped.set()
        try:
            return await self._turn
        finally:
            self._turn = None

    def go(self, fate: Fate) -> None:
        assert self._turn is not None, f"{self.name} has nothing to do"
        self.stopped.clear()
        self._turn.set_result(fate)

    def finish(self) -> None:
        self.finished = True
        self.stopped.set()

    @property
    def open(self) -> TwinTransaction | None:
        """Of the twin: the transaction that this session is in."""
        return None if self.tx is None or self.tx.ended else self.tx

    @property
    def waits(self) -> bool:
        """Of the twin: whether a row that another session holds stands in its way."""
        waits = None if self.tx is None else self.tx.waits
        return waits is not None and not waits.done()

    def tell(self, operation: str, about: object, result: object) -> None:
        self.told.append(Event(operation, str(about), result))


SEAT: ContextVar[Seat | None] = ContextVar("seat", default=None)


def seat() -> Seat:
    sitting = SEAT.get()
    assert sitting is not None, "nobody sits here"
    return sitting


NAMES = {
    statement: f"{prefix}{name}"
    for prefix, statements in (("ledger ", LEDGER), ("guild ", GUILD), ("", STATEMENTS))
    for name, statement in statements.items()
}


class Line(Pipeline):
    """A real session, on which each statement waits for its turn, also within a flight."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        super().__init__(connection)
        self._waiting: list[tuple[StatementReply, str | bytes, Mapping[str, object]]] = []
        self._lapses: Mapping[str, object] | None = None  # What `lapse` is to be given.

    @property
    def backend(self) -> int:
        return self._pgconn.backend_pid

    def send(self, statement: str, values: Mapping[str, object]) -> StatementReply:
        return self._wait(statement, values)

    def command(self, sql: bytes) -> StatementReply:
        return self._wait(sql, {})

    def _wait(self, statement: str | bytes, values: Mapping[str, object]) -> StatementReply:
        self._waiting.append((StatementReply(), statement, values))
        return self._waiting[-1][0]

    def go(self) -> None:
        """Nothing goes before its turn."""
        if not self._waiting:
            super().go()

    async def roll_back(self) -> None:
        with suppress(psycopg.Error):
            await self.sync()
        await super().roll_back()

    async def sync(self) -> None:
        waiting, self._waiting = self._waiting, []
        for reply, statement, values in waiting:
            if statement == STATEMENTS["lapse"]:
                # It travels with what follows it: the twin has no index into which it would put.
                self._lapses = values
                continue
            reply.result = await self._do(statement, values)

    async def _do(self, statement: str | bytes, values: Mapping[str, object]) -> PGresult | None:
        # What begins a transaction travels with BEGIN, and a rollback with what failed.
        if SEAT.get() is None or statement in (b"ROLLBACK", STATEMENTS["begin"]):
            return await self._alone(statement, values)
        name = statement.decode() if isinstance(statement, bytes) else NAMES.get(statement)
        fate = await seat().arrive(name or str(statement)[:12])
        seat().line = self
        if self._pgconn.transaction_status == TransactionStatus.IDLE:
            await self._alone(SET_CLOCK, {"now_us": seat().clock.now_us})
        if self._lapses is not None:
            await self._alone(STATEMENTS["lapse"], self._lapses)
            self._lapses = None
        result = await self._alone(statement, values)
        if fate is Fate.REPLY_LOST:
            await self._connection.close()
            raise psycopg.OperationalError("the reply was lost")
        return result

    async def _alone(self, statement: str | bytes, values: Mapping[str, object]) -> PGresult | None:
        if isinstance(statement, bytes):
            sent = super().command(statement)
        else:
            sent = super().send(statement, values)
        await super().sync()
        return sent.result


class SeatedTwin(TwinTransaction):
    async def pause(self) -> None:
        await seat().arrive("")
        self._alive()


class SeatedStore(MemoryStore):
    """The twin, each of whose statements waits for its turn as well."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock.seconds, MemoryTables(), LEASE_S)
        self.lock_s = FOREVER_S

    def _begin(self) -> TwinTransaction:
        tx = SeatedTwin(self.tables, self.now_us(), self.lock_s)
        seat().tx = tx
        return tx

    async def pause(self) -> None:
        await seat().arrive("")

    async def _commit(self, tx: TwinTransaction) -> None:
        fate = await seat().arrive("")
        tx.commit()
        if fate is Fate.REPLY_LOST:
            raise CommitUnknown("the reply was lost", tx.xid)


def postgres(database: str) -> PostgresStore:
    bounds = StoreLimits(
        lease_s=LEASE_S,
        connections=8,
        statement_s=FOREVER_S,
        lock_s=FOREVER_S,
        idle_in_transaction_s=FOREVER_S,
    )
    store = PostgresStore(database, SCHEMA, bounds)
    store.pipe = Line
    kwargs = store._pool.kwargs
    assert isinstance(kwargs, dict)
    # A deadlock is ended by the scheduler, on both sides at the same point.
    timer = f" -c deadlock_timeout={int(FOREVER_S)}s"
    kwargs["options"] = kwargs["options"].replace(",tidegate", ",tidegate,pg_catalog") + timer
    return store
