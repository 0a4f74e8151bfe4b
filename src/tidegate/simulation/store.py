"""The shared database, reached by one worker over connections that fail."""

from collections.abc import Mapping, Sequence
from itertools import compress
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tidegate.core.kind import Transfer
from tidegate.core.moves import Moves
from tidegate.core.ports import (
    Behind,
    CommitUnknown,
    FlowChecksums,
    KeyLookup,
    RequestKey,
    StoreUnavailable,
    nothing,
)
from tidegate.core.wire import HistoryMark
from tidegate.simulation.faults import Fault
from tidegate.simulation.inbox import NodeInbox
from tidegate.simulation.loop import sleep
from tidegate.store.memory_store import MemoryStore
from tidegate.store.memory_transaction import TwinTransaction
from tidegate.systems.trading import client as trading

if TYPE_CHECKING:
    from tidegate.simulation.world import SimWorker

MARKS = "core_positions"
INTRODUCTION = ("store", "here", [3])  # The store, its database, and the assets that exist.
LANDING_S = 4.0  # Within which a COMMIT lands that nobody waits for any more.
KILLED = frozenset({Fault.KILLED_BEFORE, Fault.KILLED_AFTER, Fault.KILLED_LATE})


class SimTransaction(TwinTransaction):
    """A transaction of a worker. The auditor sees what it really did when it commits."""

    def __init__(self, node: "SimWorker", at_us: int, lock_s: float) -> None:
        super().__init__(node.world.tables, at_us, lock_s)
        self.node = node
        self.leased: frozenset[UUID] = frozenset()
        self.heard = True  # Whether the worker will learn that it has committed.

    def commit(self) -> None:
        super().commit()
        if self.written:
            node, world = self.node, self.node.world
            world.auditor.committed(self.written, self.leased, node if self.heard else None)
            world.limits.committed(self.written)
            world.inbox.committed(self.written, self.at_us)

    async def fetch(self, statement: str, values: Mapping[str, Any]) -> list[Any]:
        """What the core's client reads, as the database carries it out."""
        await self.pause()
        if statement == trading.STATEMENTS["introduction"]:
            return [INTRODUCTION]
        assert statement == trading.STATEMENTS["marks"], f"unknown here: {statement}"
        rows: dict[Any, Any] = self.tables.rows[MARKS]
        return [mark for key, mark in rows.items() if key[0] == values["core"]]

    async def post(self, statement: str, values: Mapping[str, Any]) -> None:
        """What it writes."""
        assert statement == trading.STATEMENTS["remember"], f"unknown here: {statement}"
        key = values["core"], values["process"]
        await self.lock(MARKS, [key])
        mark = tuple(values[name] for name in HistoryMark.__struct_fields__)
        uuid, position, _, epoch = mark
        known = self.get(MARKS, key)
        if known is None or (known[0] == uuid and (known[1], known[3]) < (position, epoch)):
            self.put(MARKS, key, mark)


class SimSession:
    """The way of one transaction: begun, and then committed by fate, or ended."""

    # Not a generator, which takes twice as long: every transaction of every worker has one.
    __slots__ = ("_store", "_tx")

    def __init__(self, store: "NodeStore") -> None:
        self._store = store

    async def __aenter__(self) -> SimTransaction:
        store = self._store
        await store.reach("begin")
        self._tx = tx = SimTransaction(store.node, store.now_us(), store.lock_s)
        store.node.open[tx] = None
        return tx

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        store, tx = self._store, self._tx
        try:
            if kind is None:
                await store.commit_by_fate(tx)
        except CommitUnknown:
            store.node.doubts += 1
            raise
        finally:
            # Whoever has been taken out of here ends by itself.
            if tx in store.node.open:
                del store.node.open[tx]
                tx.end()


class NodeStore(MemoryStore):
    """Every call asks its fate: it is lost before or after it is done, or the worker dies."""

    def __init__(self, node: "SimWorker") -> None:
        super().__init__(node.world.database_time, node.world.tables)
        self.node = node
        self.inbox = NodeInbox(self)

    async def reach(self, point: str) -> Fault | None:
        """On the way to the server. Time passes, sometimes enough to count."""
        world = self.node.world
        if (throw := world.dice.random)() < 0.1:
            await sleep(throw() * 0.01)
        fault = world.fate(point)
        if fault is None:
            return None
        if fault is Fault.KILLED_BEFORE:
            await self.node.die()
        if fault is Fault.LOST:
            raise StoreUnavailable("the server closed the connection")
        return fault

    async def returned(self, fault: Fault | None) -> None:
        """It is done. The way back is another matter."""
        if fault is Fault.KILLED_AFTER:
            await self.node.die()
        if fault is Fault.REPLY_LOST:
            raise StoreUnavailable("the reply was lost")

    def transaction(self) -> "SimSession":  # type: ignore[override]
        return SimSession(self)

    async def commit_by_fate(self, tx: SimTransaction) -> None:
        node = self.node
        try:
            fault = await self.reach("commit")
        except StoreUnavailable as lost:
            raise CommitUnknown(str(lost), tx.xid) from lost
        tx.heard = fault is None
        if fault in (Fault.LATE, Fault.KILLED_LATE):
            del node.open[tx]
            node.world.later(self._land(tx))
            if fault is Fault.KILLED_LATE:
                await node.die()
            raise CommitUnknown("the connection was lost during COMMIT", tx.xid)
        tx.commit()
        tx.end()
        if fault is Fault.REPLY_LOST:
            raise CommitUnknown("the reply to COMMIT was lost", tx.xid)
        if fault is not None:
            await self.returned(fault)

    async def _land(self, tx: TwinTransaction) -> None:
        """The session of a client that has gone: it still holds its locks, and then commits."""
        await sleep(self.node.world.dice.random() * LANDING_S)
        tx.commit()
        tx.end()

    async def due(self, lanes: Sequence[str], flows: FlowChecksums) -> Sequence[str]:
        await self.reach("due")
        return await super().due(lanes, flows)

    async def claim(self, lane: str, limit: int, flows: FlowChecksums) -> Sequence[Transfer]:
        fault = await self.reach("claim")
        claimed = await super().claim(lane, limit, flows)
        self.node.world.auditor.claimed(claimed)
        if fault is not None:
            await self.returned(fault)
        return claimed

    async def lock(
        self, tx: TwinTransaction, transfers: Sequence[Transfer], behind: Behind = nothing
    ) -> Sequence[Transfer]:
        await self.reach("lock")
        return await super().lock(tx, transfers, behind)

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
        await self.reach("fates")
        return await super().aborted(xids)

    async def find(self, ids: Sequence[UUID]) -> Sequence[Transfer]:
        await self.reach("find")
        return await super().find(ids)

    async def release(self, transfers: Sequence[Transfer]) -> None:
        await self.reach("release")
        await super().release(transfers)

    def _begin(self) -> TwinTransaction:
        """A statement of its own: if the worker dies in it, the server lets go of its rows."""
        for ended in [tx for tx in self.node.open if tx.ended]:
            del self.node.open[ended]
        tx = super()._begin()
        self.node.open[tx] = None
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
