"""The shared database, as one worker reaches it over connections that fail."""

from collections.abc import Mapping, Sequence
from itertools import compress
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tidegate.core.kind import Transfer
from tidegate.core.moves import Moves
from tidegate.core.ports import (
    AfterLock,
    CommitUnknown,
    FlowChecksums,
    KeyLookup,
    RequestKey,
    StoreUnavailable,
    no_action,
)
from tidegate.core.wire import HistoryMark
from tidegate.simulation.faults import Fault
from tidegate.simulation.inbox import WorkerInbox
from tidegate.simulation.loop import sleep
from tidegate.store.memory_store import MemoryStore
from tidegate.store.memory_transaction import TwinTransaction
from tidegate.systems.trading import client as trading

if TYPE_CHECKING:
    from tidegate.simulation.world import SimWorker

MARKS = "core_positions"
INTRODUCTION = ("store", "here", [3])  # The store, its database, and the assets that exist.
LATE_COMMIT_S = 4.0  # Within this time a COMMIT takes effect that no client waits for any more.


class SimTransaction(TwinTransaction):
    """A transaction of a worker. On commit the auditor gets everything that it wrote."""

    def __init__(self, worker: "SimWorker", at_us: int, lock_s: float) -> None:
        super().__init__(worker.world.tables, at_us, lock_s)
        self.worker = worker
        self.leased: frozenset[UUID] = frozenset()
        self.acknowledged = True  # Whether the worker will get the reply to its COMMIT.

    def commit(self) -> None:
        super().commit()
        if self.written:
            worker, world = self.worker, self.worker.world
            world.auditor.committed(
                self.written, self.leased, worker if self.acknowledged else None
            )
            world.limits.committed(self.written)
            world.inbox.committed(self.written, self.at_us)

    async def fetch(self, statement: str, values: Mapping[str, Any]) -> list[Any]:
        """The queries of the core's client."""
        await self.pause()
        if statement == trading.STATEMENTS["introduction"]:
            return [INTRODUCTION]
        assert statement == trading.STATEMENTS["marks"], f"not simulated: {statement}"
        rows: dict[Any, Any] = self.tables.rows[MARKS]
        return [mark for key, mark in rows.items() if key[0] == values["core"]]

    async def post(self, statement: str, values: Mapping[str, Any]) -> None:
        """The write of the core's client."""
        assert statement == trading.STATEMENTS["remember"], f"not simulated: {statement}"
        key = values["core"], values["process"]
        await self.lock(MARKS, [key])
        mark = tuple(values[name] for name in HistoryMark.__struct_fields__)
        uuid, position, _, epoch = mark
        known = self.get(MARKS, key)
        if known is None or (known[0] == uuid and (known[1], known[3]) < (position, epoch)):
            self.put(MARKS, key, mark)


class SimSession:
    """A context manager of one transaction. Its commit may fail."""

    # Not a generator, which takes twice as long: every transaction of every worker needs one.
    __slots__ = ("_store", "_tx")

    def __init__(self, store: "WorkerStore") -> None:
        self._store = store

    async def __aenter__(self) -> SimTransaction:
        store = self._store
        await store.reach("begin")
        self._tx = tx = SimTransaction(store.worker, store.now_us(), store.lock_s)
        store.worker.open[tx] = None
        return tx

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        store, tx = self._store, self._tx
        try:
            if kind is None:
                await store.commit_with_fault(tx)
        except CommitUnknown:
            store.worker.doubts += 1
            raise
        finally:
            # A transaction that commits late was removed here, and ends by itself.
            if tx in store.worker.open:
                del store.worker.open[tx]
                tx.end()


class WorkerStore(MemoryStore):
    """The store of one worker. Each call or its reply may be lost, or the worker may die."""

    def __init__(self, worker: "SimWorker") -> None:
        super().__init__(worker.world.database_time, worker.world.tables)
        self.worker = worker
        self.inbox = WorkerInbox(self)

    async def reach(self, point: str) -> Fault | None:
        """Send a call to the server: let some time pass, and apply a fault that prevents it."""
        world = self.worker.world
        if (random := world.dice.random)() < 0.1:
            await sleep(random() * 0.01)
        fault = world.next_fault(point)
        if fault is None:
            return None
        if fault is Fault.KILLED_BEFORE:
            await self.worker.die()
        if fault is Fault.LOST:
            raise StoreUnavailable("the server closed the connection")
        return fault

    async def returned(self, fault: Fault | None) -> None:
        """The call is done. Apply a fault of its reply."""
        if fault is Fault.KILLED_AFTER:
            await self.worker.die()
        if fault is Fault.REPLY_LOST:
            raise StoreUnavailable("the reply was lost")

    def transaction(self) -> "SimSession":  # type: ignore[override]
        return SimSession(self)

    async def commit_with_fault(self, tx: SimTransaction) -> None:
        worker = self.worker
        try:
            fault = await self.reach("commit")
        except StoreUnavailable as lost:
            raise CommitUnknown(str(lost), tx.xid) from lost
        tx.acknowledged = fault is None
        if fault in (Fault.LATE, Fault.KILLED_LATE):
            del worker.open[tx]
            worker.world.in_background(self._commit_late(tx))
            if fault is Fault.KILLED_LATE:
                await worker.die()
            raise CommitUnknown("the connection was lost during COMMIT", tx.xid)
        tx.commit()
        tx.end()
        if fault is Fault.REPLY_LOST:
            raise CommitUnknown("the reply to COMMIT was lost", tx.xid)
        if fault is not None:
            await self.returned(fault)

    async def _commit_late(self, tx: TwinTransaction) -> None:
        """The client has disconnected. Its session still holds its locks, and then commits."""
        await sleep(self.worker.world.dice.random() * LATE_COMMIT_S)
        tx.commit()
        tx.end()

    async def due(self, lanes: Sequence[str], flows: FlowChecksums) -> Sequence[str]:
        await self.reach("due")
        return await super().due(lanes, flows)

    async def claim(self, lane: str, limit: int, flows: FlowChecksums) -> Sequence[Transfer]:
        fault = await self.reach("claim")
        claimed = await super().claim(lane, limit, flows)
        self.worker.world.auditor.claimed(claimed)
        if fault is not None:
            await self.returned(fault)
        return claimed

    async def lock(
        self, tx: TwinTransaction, transfers: Sequence[Transfer], after_lock: AfterLock = no_action
    ) -> Sequence[Transfer]:
        await self.reach("lock")
        return await super().lock(tx, transfers, after_lock)

    async def reserve(self, tx: TwinTransaction, keys: Sequence[RequestKey]) -> None:
        await self.reach("reserve")
        await super().reserve(tx, keys)

    async def write(
        self, tx: TwinTransaction, moves: Moves, leased: Sequence[bool]
    ) -> Sequence[Transfer]:
        await self.reach("write")
        assert isinstance(tx, SimTransaction)
        tx.leased = frozenset([t.id for t in compress(moves.transfers, leased)])
        return await super().write(tx, moves, leased)

    async def look(self, keys: Sequence[tuple[int, str]]) -> KeyLookup:
        await self.reach("look")
        return await super().look(keys)

    async def aborted(self, xids: Sequence[str | None]) -> bool:
        await self.reach("aborted")
        return await super().aborted(xids)

    async def find(self, ids: Sequence[UUID]) -> Sequence[Transfer]:
        await self.reach("find")
        return await super().find(ids)

    async def release(self, transfers: Sequence[Transfer]) -> None:
        await self.reach("release")
        await super().release(transfers)

    def _begin(self) -> TwinTransaction:
        """A statement outside a transaction: if the worker dies, the server releases its locks."""
        for ended in [tx for tx in self.worker.open if tx.ended]:
            del self.worker.open[ended]
        tx = super()._begin()
        self.worker.open[tx] = None
        return tx

    async def note_outage(self, lane: str, worker: str, attempts: int, reason: str) -> None:
        await self.reach("outage")
        await super().note_outage(lane, worker, attempts, reason)

    async def end_outage(self, lane: str, worker: str) -> None:
        await self.reach("outage")
        await super().end_outage(lane, worker)

    async def askable(
        self, transfers: Sequence[Transfer], flows: FlowChecksums
    ) -> Sequence[Transfer]:
        await self.reach("askable")
        return await super().askable(transfers, flows)

    async def mend_clock(self, beyond_s: float | None, limit: int) -> tuple[float, int]:
        await self.reach("clock")
        return await super().mend_clock(beyond_s, limit)
