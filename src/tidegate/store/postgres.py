"""The store on PostgreSQL: one schema, selected by the search path of the connections."""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self
from uuid import UUID

import psycopg
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout

from tidegate.core.answers import bounded
from tidegate.core.flow import Flow
from tidegate.core.kind import Transfer
from tidegate.core.moves import Moves
from tidegate.core.ports import (
    MAX_HALTS,
    AfterLock,
    BelowFloor,
    FlowChecksums,
    Halt,
    KeyLookup,
    KnownRequest,
    NoSession,
    NotWritable,
    Outage,
    RequestKey,
    StoreFault,
    StoreUnavailable,
    no_action,
)
from tidegate.core.request import Asset
from tidegate.core.sql import bigints, numbers, strings, texts, uuids
from tidegate.store.flow_checks import differing
from tidegate.store.inbox import PostgresInbox
from tidegate.store.migrate import migrations
from tidegate.store.pipeline import Pipeline
from tidegate.store.rows import (
    PROBES_KEPT,
    as_counted,
    attempt_columns,
    creation_columns,
    entry_columns,
    key_columns,
    party_columns,
    read_columns,
    state_columns,
    table_columns,
    transfer_from,
)
from tidegate.store.sessions import (
    PostgresSession,
    StoreLimits,
    WholeNumber,
    keepalive_options,
    session_options,
)
from tidegate.store.transaction import STATEMENTS, PostgresTransaction
from tidegate.store.written_rows import written

MAX_LISTS = 5_000  # Handover lists read by one statement: more than are written in a second.


class PostgresStore:
    """Open it before use: `async with PostgresStore(...) as store`."""

    pipe: type[Pipeline] = Pipeline  # The class that sends the statements of a session.

    def __init__(self, conninfo: str, schema: str, bounds: StoreLimits | None = None) -> None:
        self.schema = schema
        self.bounds = bounds or StoreLimits()
        self.lease_s = self.bounds.lease_s
        self.inbox = PostgresInbox(self)
        # Sessions that are not in use. The pool creates sessions and replaces lost ones, but its
        # checkout is slower than a statement, so idle sessions are kept here.
        self._idle: list[PostgresSession] = []
        self._waiting = 0  # Callers that wait for a session of the pool.
        self.trouble: str | None = None  # Why the last write was refused; None if writes work.
        self._seen_us = 0  # The latest time at which this process leased a transfer.
        self._pool = AsyncConnectionPool(
            conninfo,
            connection_class=PostgresSession,
            min_size=1,
            max_size=self.bounds.connections,
            timeout=self.bounds.pool_wait_s,
            # The pool doubles its pauses between reconnects without a cap. So it gives up soon,
            # and the next caller starts a new series of reconnects.
            reconnect_timeout=self.bounds.reconnect_s,
            kwargs={
                "autocommit": True,
                "options": session_options(schema, self.bounds),
                **keepalive_options(self.bounds.connection_lost_s),
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

    async def due(self, lanes: Sequence[str], flows: FlowChecksums) -> Sequence[str]:
        values = {"lanes": texts(lanes), **table_columns(flows)}
        return [lane for (lane,) in await self._fetch_due("due", values)]

    async def claim(self, lane: str, limit: int, flows: FlowChecksums) -> Sequence[Transfer]:
        values = {"lane": lane, "limit": limit, "lease_s": self.lease_s, **table_columns(flows)}
        claimed = [transfer_from(row) for row in await self._fetch_due("claim", values)]
        self._note_time(*(t.updated_us + round(t.waited_s * 1_000_000) for t in claimed[:1]))
        return claimed

    async def lock(
        self,
        tx: PostgresTransaction,
        transfers: Sequence[Transfer],
        after_lock: AfterLock = no_action,
    ) -> Sequence[Transfer]:
        reply = tx.send(STATEMENTS["lock"], read_columns(transfers))
        tx.dispatch()
        await after_lock()
        if not (rows := await tx.rows(reply)):
            return transfers
        counters = {id_: row for id_, *row in rows}
        current = [as_counted(t, *counters[t.id]) if t.id in counters else t for t in transfers]
        return [t for t in current if t is not None]

    async def reserve(self, tx: PostgresTransaction, keys: Sequence[RequestKey]) -> None:
        await tx.post(STATEMENTS["reserve"], key_columns(keys))

    async def write(
        self, tx: PostgresTransaction, moves: Moves, leased: Sequence[bool]
    ) -> Sequence[Transfer]:
        start = await tx.begun()
        self._note_time(start.at_us)
        batch = written(moves, leased, start.at_us)
        rows = batch.rows
        values = state_columns(batch, self.lease_s) | entry_columns(batch)
        if moves.created:
            if min([row.id.int for row in rows]) < start.floor.int:
                raise BelowFloor(f"an id is below the floor of this store, {start.floor}")
            await tx.post(STATEMENTS["create"], values | creation_columns(moves))
        else:
            values |= {"count": len(rows), **party_columns(moves)}
            await tx.post(STATEMENTS["record"], values)
        if any(group.step.attempt for group in moves.groups):
            await tx.post(STATEMENTS["add_attempts"], attempt_columns(moves))
        return rows

    async def aborted(self, xids: Sequence[str | None]) -> bool:
        known = [xid for xid in xids if xid is not None]
        if len(known) < len(xids):
            return False
        try:
            [(aborted,)] = await self._fetch("all_aborted", {"xids": texts(known)})
        except StoreFault:
            return False  # This server has never had one of the transactions: its end is unknown.
        return bool(aborted)

    async def look(self, keys: Sequence[tuple[int, str]]) -> KeyLookup:
        owners, cids = zip(*keys, strict=True) if keys else ((), ())
        values = {"owners": bigints(owners), "cids": strings(cids)}
        rows = await self._fetch("look", values)
        known: list[KnownRequest | None] = [None] * len(keys)
        for _, number, fingerprint, id_, refusal, *row in rows:
            if number is not None:
                transfer = None if row[0] is None else transfer_from(row)
                known[number - 1] = KnownRequest(fingerprint, id_, transfer, refusal)
        return KeyLookup(rows[0][0], known)

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

    async def note_outage(self, lane: str, worker: str, attempts: int, reason: str) -> None:
        values = {"lane": lane, "process": worker, "attempts": attempts, "kept": PROBES_KEPT}
        await self._fetch("note_outage", values | {"reason": bounded(reason)})

    async def end_outage(self, lane: str, worker: str) -> None:
        await self._fetch("end_outage", {"lane": lane, "process": worker})

    async def outages(self) -> Sequence[Outage]:
        return [Outage(*row) for row in await self._fetch("outages", {})]

    async def askable(
        self, transfers: Sequence[Transfer], flows: FlowChecksums
    ) -> Sequence[Transfer]:
        installed = await self._fetch("askable", {})
        ours = {flow for flow, checksum in installed if flows.get(flow) == checksum}
        return [t for t in transfers if t.kind.flow in ours]

    async def mend_clock(self, beyond_s: float | None, limit: int) -> tuple[float, int]:
        values = {"beyond_s": beyond_s, "limit": limit, "seen_us": self._seen_us}
        [(behind_s, mended)] = await self._fetch("mend_clock", values)
        self._seen_us = 0
        return behind_s, mended

    def _note_time(self, *at_us: int) -> None:
        """Keep the latest time at which a transfer was leased. The database's clock may be ahead
        for a moment; after it is set back, those transfers must not wait for that time.
        """
        self._seen_us = max(self._seen_us, *at_us, 0)

    async def halted(self) -> bool:
        [(halted,)] = await self._fetch("halted", {})
        return bool(halted)

    async def halt(self, reason: str, actor: str) -> int:
        [(number,)] = await self._fetch("halt", {"reason": reason, "actor": actor})
        return int(number)

    async def halts(self) -> Sequence[Halt]:
        return [Halt(*row) for row in await self._fetch("halts", {"limit": MAX_HALTS})]

    async def resume(
        self, reason: str, actor: str, ids: Sequence[int] | None = None
    ) -> Sequence[Halt]:
        named = None if ids is None else numbers(ids)
        values = {"reason": reason, "actor": actor, "ids": named}
        return [Halt(*row) for row in await self._fetch("resume", values)]

    async def assets(self) -> Mapping[str, Asset]:
        return {row[1]: Asset(*row) for row in await self._fetch("assets", {})}

    async def verify(self, flows: Iterable[Flow]) -> None:
        """Refuse to start on tables that are too old, or that were made for other flows."""
        needed = migrations("store")[-1]
        try:
            [(number,)] = await self._fetch("migrated", {})
        except StoreUnavailable:
            raise
        except StoreFault:
            number = 0
        if number < needed.number:
            raise StoreFault(
                f"schema {self.schema} is older than this program, which needs its migration"
                f" {needed.name}; run `tidegate migrate`"
            )
        if names := differing(dict(await self._fetch("flows", {})), flows):
            raise StoreFault(
                f"flow {', '.join(names)}: the database has another version of this flow;"
                " run `tidegate migrate`"
            )

    async def forget_marks(self, core: str) -> None:
        """Delete the marks of processes that have ended. Each start of a process adds one."""
        await self._fetch("forget_marks", {"core": core})

    async def run(self, statement: str, values: Mapping[str, object]) -> list[Any]:
        """Run one statement in its own transaction, for tables that the engine does not own."""
        async with self.session() as pipe:
            return await PostgresTransaction(pipe).fetch(statement, values)

    async def _fetch(self, name: str, values: Mapping[str, object]) -> list[Any]:
        return await self.run(STATEMENTS[name], values)

    async def _fetch_due(self, name: str, values: Mapping[str, object]) -> list[Any]:
        """Run `lapse` first: held rows whose lease is over are due too, once they are indexed."""
        async with self.session() as pipe:
            statements = PostgresTransaction(pipe)
            statements.send(STATEMENTS["lapse"], {"lease_s": self.lease_s, "lists": MAX_LISTS})
            return await statements.fetch(STATEMENTS[name], values)

    async def _configure(self, session: PostgresSession) -> None:
        session.adapters.register_loader("numeric", WholeNumber)
        session.pipe = self.pipe(session)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Pipeline]:
        while self._idle and not self._idle[-1].pipe.is_idle:
            await self._give_back(self._idle.pop())  # The server has closed it meanwhile.
        session = self._idle.pop() if self._idle else await self._new()
        try:
            yield session.pipe
        except NotWritable as fault:
            self.trouble = fault.kind
            if fault.kind == "read-only":
                # After a failover these sessions are connected to what is now the standby.
                for stale in (session, *self._idle):
                    stale.pipe.outdated = True
            raise
        finally:
            if session.pipe.is_idle and not self._waiting and not self._pool.closed:
                self._idle.append(session)
            else:
                await self._give_back(session)

    async def _new(self) -> PostgresSession:
        """Take a session from the pool. If all are in use, wait until one is given back."""
        self._waiting += 1
        try:
            return await self._pool.getconn()
        except (PoolTimeout, PoolClosed) as fault:
            raise NoSession("no free connection to PostgreSQL within the time limit") from fault
        except psycopg.OperationalError as fault:
            raise StoreUnavailable(str(fault)) from fault
        finally:
            self._waiting -= 1

    async def _give_back(self, session: PostgresSession) -> None:
        if not session.pipe.is_idle:
            await session.close()  # The pool replaces it.
        await self._pool.putconn(session)
