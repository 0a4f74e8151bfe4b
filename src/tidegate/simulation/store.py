"""The shared database, reached by one worker over connections that fail."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import compress
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tidegate.core.ports import Behind, Birth, Known, StoreUnavailable, nothing
from tidegate.core.transfer import Move, Transfer
from tidegate.core.wire import Mark
from tidegate.simulation.fate import Fault
from tidegate.store.memory import MemoryStore, Twin
from tidegate.systems import trading

if TYPE_CHECKING:
    from tidegate.simulation.world import Node

MARKS = "core_positions"
LANDING_S = 4.0  # Within which a COMMIT lands that nobody waits for any more.
KILLED = frozenset({Fault.KILLED_BEFORE, Fault.KILLED_AFTER, Fault.KILLED_LATE})


class SimTwin(Twin):
    """A transaction of a worker. The auditor sees what it really did when it commits."""

    def __init__(self, node: "Node", at_us: int, lock_s: float) -> None:
        super().__init__(node.world.tables, at_us, lock_s)
        self.node = node
        self.leased: frozenset[UUID] = frozenset()
        self.heard = True  # Whether the worker will learn that it has committed.

    def commit(self) -> None:
        super().commit()
        by = self.node if self.heard else None
        self.node.world.auditor.committed(self.written, self.leased, by)

    async def fetch(self, statement: str, values: Mapping[str, Any]) -> list[Any]:
        """What the core's client reads, as the database carries it out."""
        assert statement == trading.STATEMENTS["marks"], f"unknown here: {statement}"
        await self.pause()
        rows: dict[Any, Any] = self.tables.rows[MARKS]
        return [mark for key, mark in rows.items() if key[0] == values["core"]]

    async def post(self, statement: str, values: Mapping[str, Any]) -> None:
        """What it writes."""
        assert statement == trading.STATEMENTS["remember"], f"unknown here: {statement}"
        key = values["core"], values["process"]
        await self.lock(MARKS, [key])
        mark = tuple(values[name] for name in Mark.__struct_fields__)
        uuid, position, _, epoch = mark
        known = self.get(MARKS, key)
        if known is None or (known[0] == uuid and (known[1], known[3]) < (position, epoch)):
            self.put(MARKS, key, mark)


class NodeStore(MemoryStore):
    """Every call asks its fate: it is lost before or after it is done, or the worker dies."""

    def __init__(self, node: "Node") -> None:
        super().__init__(node.world.loop.time, node.world.tables)
        self.node = node

    async def _reach(self, point: str) -> Fault | None:
        """On the way to the server. Time passes, sometimes enough to count."""
        node = self.node
        if node.world.dice.random() < 0.1:
            await asyncio.sleep(node.world.dice.random() * 0.01)
        fault = node.world.fate(point)
        if fault is Fault.KILLED_BEFORE:
            await node.die()
        if fault is Fault.LOST:
            raise StoreUnavailable("the server closed the connection")
        return fault

    async def _return(self, fault: Fault | None) -> None:
        """It is done. The way back is another matter."""
        if fault is Fault.KILLED_AFTER:
            await self.node.die()
        if fault is Fault.REPLY_LOST:
            raise StoreUnavailable("the reply was lost")

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[SimTwin]:
        await self._reach("begin")
        tx = SimTwin(self.node, self._now_us(), self.lock_s)
        self.node.open[tx] = None
        try:
            yield tx
            await self._commit(tx)
        finally:
            # Whoever has been taken out of here ends by itself.
            if tx in self.node.open:
                del self.node.open[tx]
                tx.end()

    async def _commit(self, tx: Twin) -> None:
        node = self.node
        fault = await self._reach("commit")
        assert isinstance(tx, SimTwin)
        tx.heard = fault is None
        if fault in (Fault.LATE, Fault.KILLED_LATE):
            del node.open[tx]
            node.world.later(self._land(tx))
            if fault is Fault.KILLED_LATE:
                await node.die()
            raise StoreUnavailable("the connection was lost during COMMIT")
        tx.commit()
        tx.end()
        await self._return(fault)

    async def _land(self, tx: Twin) -> None:
        """The session of a client that has gone: it still holds its locks, and then commits."""
        await asyncio.sleep(self.node.world.dice.random() * LANDING_S)
        tx.commit()
        tx.end()

    async def claim(self, lane: str, limit: int) -> Sequence[Transfer]:
        fault = await self._reach("claim")
        claimed = await super().claim(lane, limit)
        self.node.world.auditor.claimed(claimed)
        await self._return(fault)
        return claimed

    async def lock(
        self, tx: Twin, transfers: Sequence[Transfer], behind: Behind = nothing
    ) -> Sequence[Transfer]:
        await self._reach("lock")
        return await super().lock(tx, transfers, behind)

    async def record(
        self, tx: Twin, moves: Sequence[Move], leased: Sequence[bool]
    ) -> Sequence[Transfer]:
        await self._reach("record")
        assert isinstance(tx, SimTwin)
        tx.leased = frozenset(compress((m.after.id for m in moves), leased))
        return await super().record(tx, moves, leased)

    async def insert(
        self, tx: Twin, births: Sequence[Birth], leased: Sequence[bool]
    ) -> Sequence[Transfer]:
        await self._reach("insert")
        assert isinstance(tx, SimTwin)
        tx.leased = frozenset(compress((b.move.after.id for b in births), leased))
        return await super().insert(tx, births, leased)

    async def look(
        self, keys: Sequence[tuple[int, str]]
    ) -> tuple[int, bool, Sequence[Known | None]]:
        await self._reach("look")
        return await super().look(keys)

    async def find(self, ids: Sequence[UUID]) -> Sequence[Transfer]:
        await self._reach("find")
        return await super().find(ids)

    async def release(self, transfers: Sequence[Transfer]) -> None:
        await self._reach("release")
        await super().release(transfers)

    async def halted(self) -> bool:
        await self._reach("halted")
        return await super().halted()
