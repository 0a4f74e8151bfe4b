"""A session on one side: it runs a statement when it is its turn, and records the result."""

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

# Longer than any run: only the scheduler ends a wait, and never a timer.
FOREVER_S = 600.0
LEASE_S = 10.0
START_US = 1_800_000_000_000_000

# A now() that the search path finds before the server's own. So the unchanged statements use the
# time that the test sets.
CLOCK = f"""
CREATE OR REPLACE FUNCTION {SCHEMA}.now() RETURNS timestamptz LANGUAGE sql STABLE AS $$
    SELECT to_timestamp(0) + current_setting('differential.now_us')::bigint * interval '1 us'
$$;
"""
# The guild's functions have their own search path, which would find the server's now() first.
PATHS = f"""
DO $$
DECLARE
    function_id regprocedure;
BEGIN
    FOR function_id IN SELECT oid FROM pg_proc
                     WHERE pronamespace = 'economy'::regnamespace AND proconfig IS NOT NULL
    LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path TO economy, {SCHEMA}, tidegate,'
                       ' pg_catalog', function_id);
    END LOOP;
END
$$
"""
SET_CLOCK = "SELECT set_config('differential.now_us', %(now_us)s, false)"


class Fate(Enum):
    """What happens to a statement when it is its turn."""

    DONE = auto()
    REPLY_LOST = auto()  # Only for a COMMIT: it takes effect, and its reply is lost.


class Event(NamedTuple):
    """A finished operation, and what it returned or raised."""

    operation: str
    about: str
    result: object


class Clock:
    """The time, which both sides share."""

    def __init__(self) -> None:
        self.now_us = START_US

    def seconds(self) -> float:
        return self.now_us / 1_000_000


@dataclass(eq=False)
class SideSession:
    name: str
    clock: Clock
    events: list[Event] = field(default_factory=list)
    wants: frozenset[tuple[str, Hashable]] = frozenset()  # The rows its operation may wait for.
    next: str = ""  # The statement that waits for its turn.
    pipeline: "ScheduledPipeline | None" = None
    tx: TwinTransaction | None = None
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    finished: bool = False
    _turn: "asyncio.Future[Fate] | None" = None

    async def wait_for_turn(self, statement: str) -> Fate:
        """Every statement waits here. It is not sent before it is this session's turn."""
        self.next = statement
        self._turn = asyncio.get_running_loop().create_future()
        self.stopped.set()
        try:
            return await self._turn
        finally:
            self._turn = None

    def take_turn(self, fate: Fate) -> None:
        assert self._turn is not None, f"{self.name} has no statement to run"
        self.stopped.clear()
        self._turn.set_result(fate)

    def finish(self) -> None:
        self.finished = True
        self.stopped.set()

    @property
    def open_tx(self) -> TwinTransaction | None:
        """On the twin's side: the open transaction of this session."""
        return None if self.tx is None or self.tx.ended else self.tx

    @property
    def is_blocked(self) -> bool:
        """On the twin's side: whether it waits for a row that another session holds."""
        waits = None if self.tx is None else self.tx.waits
        return waits is not None and not waits.done()

    def add_event(self, operation: str, about: object, result: object) -> None:
        self.events.append(Event(operation, str(about), result))


CURRENT: ContextVar[SideSession | None] = ContextVar("session", default=None)


def current_session() -> SideSession:
    session = CURRENT.get()
    assert session is not None, "this task has no session"
    return session


NAMES = {
    statement: f"{prefix}{name}"
    for prefix, statements in (("ledger ", LEDGER), ("guild ", GUILD), ("", STATEMENTS))
    for name, statement in statements.items()
}


class ScheduledPipeline(Pipeline):
    """A session of PostgreSQL in which each statement of a batch waits for its turn."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        super().__init__(connection)
        self._waiting: list[tuple[StatementReply, str | bytes, Mapping[str, object]]] = []
        self._lapse_values: Mapping[str, object] | None = None  # The values of the next `lapse`.

    @property
    def backend(self) -> int:
        return self._pgconn.backend_pid

    def send(self, statement: str, values: Mapping[str, object]) -> StatementReply:
        return self._enqueue(statement, values)

    def command(self, sql: bytes) -> StatementReply:
        return self._enqueue(sql, {})

    def _enqueue(self, statement: str | bytes, values: Mapping[str, object]) -> StatementReply:
        self._waiting.append((StatementReply(), statement, values))
        return self._waiting[-1][0]

    def dispatch(self) -> None:
        """Send nothing while statements wait for their turns."""
        if not self._waiting:
            super().dispatch()

    async def roll_back(self) -> None:
        with suppress(psycopg.Error):
            await self.sync()
        await super().roll_back()

    async def sync(self) -> None:
        waiting, self._waiting = self._waiting, []
        for reply, statement, values in waiting:
            if statement == STATEMENTS["lapse"]:
                # It runs together with the next statement: it has no counterpart on the twin,
                # which has no index.
                self._lapse_values = values
                continue
            reply.result = await self._do(statement, values)

    async def _do(self, statement: str | bytes, values: Mapping[str, object]) -> PGresult | None:
        # The statement `begin` runs in the turn of BEGIN, and a rollback in the turn that failed.
        if CURRENT.get() is None or statement in (b"ROLLBACK", STATEMENTS["begin"]):
            return await self._run_now(statement, values)
        name = statement.decode() if isinstance(statement, bytes) else NAMES.get(statement)
        fate = await current_session().wait_for_turn(name or str(statement)[:12])
        current_session().pipeline = self
        if self._pgconn.transaction_status == TransactionStatus.IDLE:
            await self._run_now(SET_CLOCK, {"now_us": current_session().clock.now_us})
        if self._lapse_values is not None:
            await self._run_now(STATEMENTS["lapse"], self._lapse_values)
            self._lapse_values = None
        result = await self._run_now(statement, values)
        if fate is Fate.REPLY_LOST:
            await self._connection.close()
            raise psycopg.OperationalError("the reply was lost")
        return result

    async def _run_now(
        self, statement: str | bytes, values: Mapping[str, object]
    ) -> PGresult | None:
        if isinstance(statement, bytes):
            sent = super().command(statement)
        else:
            sent = super().send(statement, values)
        await super().sync()
        return sent.result


class ScheduledTransaction(TwinTransaction):
    async def pause(self) -> None:
        await current_session().wait_for_turn("")
        self._check_open()


class ScheduledStore(MemoryStore):
    """The twin. Each of its statements waits for its turn too."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock.seconds, MemoryTables(), LEASE_S)
        self.lock_s = FOREVER_S

    def _begin(self) -> TwinTransaction:
        tx = ScheduledTransaction(self.tables, self.now_us(), self.lock_s)
        current_session().tx = tx
        return tx

    async def pause(self) -> None:
        await current_session().wait_for_turn("")

    async def _commit(self, tx: TwinTransaction) -> None:
        fate = await current_session().wait_for_turn("")
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
    store.pipe = ScheduledPipeline
    kwargs = store._pool.kwargs
    assert isinstance(kwargs, dict)
    # The scheduler ends a deadlock, on both sides at the same statement.
    timer = f" -c deadlock_timeout={int(FOREVER_S)}s"
    kwargs["options"] = kwargs["options"].replace(",tidegate", ",tidegate,pg_catalog") + timer
    return store
