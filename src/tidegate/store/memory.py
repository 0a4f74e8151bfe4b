"""The store's twin for simulation: the same contract over tables in memory."""

import asyncio
import types
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Generator, Hashable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from uuid import UUID

from msgspec.structs import replace

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
from tidegate.core.transfer import Entry, Move, Transfer
from tidegate.store.rows import ATTEMPTS_KEPT, written

TRANSFERS, CIDS, HISTORY, ATTEMPTS = "transfers", "cids", "history", "attempts"


class Row(NamedTuple):
    """A transfer with the columns that only the store needs."""

    transfer: Transfer
    due_s: float
    deadline_s: float | None
    expires_s: float | None = None  # Of the transfer: takes the place of its states' deadlines.


class Answered(NamedTuple):
    entry: Entry
    at_us: int
    hash: bytes


class Tables:
    """What survives a worker: committed rows, and which transaction holds which row."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[Hashable, Any]] = defaultdict(dict)
        self.holders: dict[tuple[str, Hashable], Twin] = {}
        self.waiting: dict[tuple[str, Hashable], list[asyncio.Future[None]]] = defaultdict(list)
        self.halt: tuple[str, str] | None = None


@types.coroutine
def turn() -> Generator[None, None, None]:
    """Others may run: as a sleep of no time, without its ceremony; there are very many."""
    yield


class Twin:
    """A transaction: its writes are its own until it commits, its locks until it ends."""

    def __init__(self, tables: Tables, at_us: int, lock_s: float) -> None:
        self.tables = tables
        self.at_us = at_us
        self._halted = tables.halt is not None
        self.lock_s = lock_s
        self.written: dict[tuple[str, Hashable], object] = {}
        self.held: dict[tuple[str, Hashable], None] = {}  # In the order of locking.
        self.waits: asyncio.Future[None] | None = None
        self.ended = False

    async def begun(self) -> Begun:
        return Begun(self.at_us, self._halted)

    def get(self, table: str, key: Hashable) -> Any:
        return self.written.get((table, key), self.tables.rows[table].get(key))

    def put(self, table: str, key: Hashable, row: object) -> None:
        self.written[table, key] = row

    async def lock(self, table: str, keys: Sequence[Hashable]) -> None:
        await self.pause()
        # Of what is there when the statement begins: a row that is not cannot be locked.
        await self.hold(table, [key for key in keys if self.get(table, key) is not None])

    async def hold(self, table: str, keys: Sequence[Hashable]) -> None:
        for key in keys:
            while self._taken(table, key):
                await self._wait(table, key)
            self._take(table, key)

    async def insert(self, table: str, key: Hashable, row: object) -> bool:
        while self.get(table, key) is None and self._taken(table, key):
            await self._wait(table, key)
        if self.get(table, key) is not None:
            return False
        self._take(table, key)
        self.put(table, key, row)
        return True

    def _taken(self, table: str, key: Hashable) -> bool:
        return self.tables.holders.get((table, key), self) is not self

    def _take(self, table: str, key: Hashable) -> None:
        self.tables.holders[table, key] = self
        self.held[table, key] = None

    async def _wait(self, table: str, key: Hashable) -> None:
        self.waits = asyncio.get_running_loop().create_future()
        self.tables.waiting[table, key].append(self.waits)
        try:
            await asyncio.wait_for(self.waits, self.lock_s)
        except TimeoutError as fault:
            raise StoreUnavailable(f"waited too long for {table} {key}") from fault
        finally:
            self.waits = None
        self._alive()

    async def pause(self) -> None:
        await turn()
        self._alive()

    def _alive(self) -> None:
        if self.ended:
            raise StoreUnavailable("the session was ended")

    def commit(self) -> None:
        self._alive()
        for (table, key), row in self.written.items():
            self.tables.rows[table][key] = row

    def end(self) -> None:
        """Let go of every row, as the server does when a session ends, however it ends."""
        for name in self.held:
            del self.tables.holders[name]
            for free in self.tables.waiting.pop(name, ()):
                if not free.done():
                    free.set_result(None)
        self.held.clear()
        self.ended = True
        if self.waits is not None and not self.waits.done():
            self.waits.set_result(None)


class MemoryStore:
    def __init__(
        self, clock: Callable[[], float], tables: Tables | None = None, lease_s: float = 10.0
    ) -> None:
        self.clock = clock
        self.tables = Tables() if tables is None else tables
        self.lease_s = lease_s
        self.lock_s = 5.0

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Twin]:
        await self._pause()
        tx = self._begin()
        try:
            yield tx
            await self._commit(tx)
        finally:
            tx.end()

    def _begin(self) -> Twin:
        return Twin(self.tables, self._now_us(), self.lock_s)

    async def _pause(self) -> None:
        """Where a statement outside a transaction goes to the server."""
        await turn()

    async def _commit(self, tx: Twin) -> None:
        await tx.pause()
        tx.commit()

    async def claim(self, lane: str, limit: int) -> Sequence[Transfer]:
        await self._pause()
        if self.tables.halt is not None:
            return []
        now = self.clock()
        rows = self.tables.rows[TRANSFERS]
        due = [
            (row.due_s, key)
            for key, row in rows.items()
            if row.transfer.lane == lane
            and row.due_s <= now
            and (TRANSFERS, key) not in self.tables.holders
        ]
        claimed = []
        for _, key in sorted(due)[:limit]:
            row = rows[key]
            counted = replace(row.transfer, attempts=row.transfer.attempts + 1)
            leased_until_s = _after(self._now_us(), self.lease_s)
            rows[key] = row._replace(transfer=counted, due_s=leased_until_s)
            claimed.append(self._given(rows[key]))
        return claimed

    async def lock(
        self, tx: Twin, transfers: Sequence[Transfer], behind: Behind = nothing
    ) -> Sequence[Transfer]:
        await tx.lock(TRANSFERS, sorted(t.id for t in transfers))
        await behind()
        return [t for t in transfers if _stands(tx, t)]

    async def record(
        self, tx: Twin, moves: Sequence[Move], leased: Sequence[bool]
    ) -> Sequence[Transfer]:
        # Locked they are already. Whoever comes without that waits for what the statement meets.
        await tx.lock(TRANSFERS, sorted(m.before.id for m in moves if _stands(tx, m.before)))
        rows = []
        for move, held in zip(moves, leased, strict=True):
            if not _stands(tx, move.before):
                raise StoreFault(f"{move.before.id} was locked and has moved")
            row = tx.get(TRANSFERS, move.before.id)
            after, hashes = written(move, held, tx.at_us, move.before.created_us)
            kept_s = row.deadline_s
            deadline_s = _deadline(tx, move, row.expires_s) if move.entries else kept_s
            due = self._due(tx, move, held, deadline_s)
            self._write(tx, move, hashes, Row(after, *due, row.expires_s))
            rows.append(after)
        return rows

    async def insert(
        self, tx: Twin, births: Sequence[Birth], leased: Sequence[bool]
    ) -> Sequence[Transfer]:
        await tx.pause()
        for move, cid, fingerprint, _ in sorted(births, key=lambda b: (b.move.after.owner, b.cid)):
            known = (fingerprint, move.after.id)
            if not await tx.insert(CIDS, (move.after.owner, cid), known):
                raise CidTaken("one of these requests is already known")
        rows = []
        for (move, _, _, lives_s), held in zip(births, leased, strict=True):
            after, hashes = written(move, held, tx.at_us, tx.at_us)
            expires_s = None if lives_s is None else _after(tx.at_us, lives_s)
            due = self._due(tx, move, held, _deadline(tx, move, expires_s))
            self._write(tx, move, hashes, Row(after, *due, expires_s))
            rows.append(after)
        return rows

    def _due(
        self, tx: Twin, move: Move, leased: bool, deadline_s: float | None
    ) -> tuple[float, float | None]:
        """When the row is due, at its deadline at the latest; counted from when the tx began."""
        due_s = _after(tx.at_us, self.lease_s if leased else move.delay_s)
        return (due_s if deadline_s is None else min(due_s, deadline_s)), deadline_s

    def _write(self, tx: Twin, move: Move, hashes: list[bytes], row: Row) -> None:
        id_ = row.transfer.id
        tx.put(TRANSFERS, id_, row)
        fresh = [Answered(e, tx.at_us, h) for e, h in zip(move.entries, hashes, strict=True)]
        if fresh:
            tx.put(HISTORY, id_, (*(tx.get(HISTORY, id_) or ()), *fresh))
        if move.attempt:
            retry = move.after.retries
            slot = {retry % ATTEMPTS_KEPT: (move.before.version, retry, move.attempt)}
            tx.put(ATTEMPTS, id_, (tx.get(ATTEMPTS, id_) or {}) | slot)

    async def look(
        self, keys: Sequence[tuple[int, str]]
    ) -> tuple[int, bool, Sequence[Known | None]]:
        await self._pause()
        cids, rows = self.tables.rows[CIDS], self.tables.rows[TRANSFERS]
        found = [cids.get(key) for key in keys]
        known = [None if f is None else Known(f[0], self._given(rows[f[1]])) for f in found]
        return self._now_us(), self.tables.halt is not None, known

    async def find(self, ids: Sequence[UUID]) -> Sequence[Transfer]:
        await self._pause()
        rows = self.tables.rows[TRANSFERS]
        return [self._given(rows[id_]) for id_ in ids if id_ in rows]

    async def ended(self, ids: Sequence[UUID]) -> Sequence[Transfer]:
        return [transfer for transfer in await self.find(ids) if transfer.lane is None]

    async def release(self, transfers: Sequence[Transfer]) -> None:
        await self._pause()
        tx = self._begin()

        def leased(transfer: Transfer) -> bool:
            row = tx.get(TRANSFERS, transfer.id)
            return bool(row and row.transfer.version == transfer.version and row.transfer.lane)

        try:
            met = sorted(filter(leased, transfers), key=lambda t: t.id)
            await tx.hold(TRANSFERS, [t.id for t in met])
            for transfer in filter(leased, met):
                row = tx.get(TRANSFERS, transfer.id)
                tx.put(TRANSFERS, transfer.id, row._replace(due_s=_after(tx.at_us, 0.0)))
            tx.commit()
        finally:
            tx.end()

    async def halted(self) -> bool:
        await self._pause()
        return self.tables.halt is not None

    async def halt(self, reason: str, actor: str) -> None:
        await self._pause()
        self.tables.halt = self.tables.halt or (reason, actor)

    async def resume(self, reason: str, actor: str) -> None:
        assert reason, "a halt is ended with a reason"
        assert actor, "a halt is ended by somebody"
        await self._pause()
        self.tables.halt = None

    def _now_us(self) -> int:
        return round(self.clock() * 1_000_000)

    def _given(self, row: Row) -> Transfer:
        waited_us = self._now_us() - row.transfer.updated_us
        expired = row.deadline_s is not None and row.deadline_s <= self.clock()
        return replace(row.transfer, waited_s=waited_us / 1_000_000, expired=expired)


def _stands(tx: Twin, transfer: Transfer) -> bool:
    row = tx.get(TRANSFERS, transfer.id)
    return row is not None and row.transfer.version == transfer.version


def _deadline(tx: Twin, move: Move, expires_s: float | None) -> float | None:
    if move.deadline_s is None or expires_s is not None:
        return None if move.deadline_s is None else expires_s
    return _after(tx.at_us, move.deadline_s)


def _after(at_us: int, seconds: float) -> float:
    """To the microsecond, which is how exactly the database keeps time."""
    return (at_us + round(seconds * 1_000_000)) / 1_000_000
