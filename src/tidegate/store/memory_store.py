"""The in-memory twin of the store, for simulation: the same contract over tables in memory."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache
from operator import attrgetter, is_
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from tidegate.core.answers import bounded
from tidegate.core.ids import first_id, id_time_us
from tidegate.core.kind import Transfer, TransferKind
from tidegate.core.moves import Moves
from tidegate.core.ports import (
    AfterLock,
    BelowFloor,
    CommitUnknown,
    FlowChecksums,
    Halt,
    KeyLookup,
    KeyTaken,
    KnownRequest,
    Outage,
    RequestKey,
    StoreFault,
    StoreUnavailable,
    no_action,
)
from tidegate.core.transfer import Move
from tidegate.store import memory_state
from tidegate.store.inbox import INBOX, MemoryInbox
from tidegate.store.memory_handovers import hand_over, lapse, lapse_all, listed
from tidegate.store.memory_state import after as _after
from tidegate.store.memory_state import deadline_s, expires_s
from tidegate.store.memory_tables import (
    TRANSFERS,
    MemoryRow,
    MemoryTables,
    answered_by,
    row_of,
)
from tidegate.store.memory_transaction import TwinTransaction, yield_once
from tidegate.store.rows import ATTEMPTS_KEPT, as_counted
from tidegate.store.written_rows import written

CIDS, HISTORY, ATTEMPTS = "cids", "history", "attempts"
OUTAGES = "lane_troubles"


class MemoryStore:
    def __init__(
        self, clock: Callable[[], float], tables: MemoryTables | None = None, lease_s: float = 10.0
    ) -> None:
        self.clock, self.lease_s = clock, lease_s
        self.tables = MemoryTables() if tables is None else tables
        self.lock_s, self._seen_us = 2.0, 0
        self.inbox = MemoryInbox(self)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[TwinTransaction]:
        await self.pause()
        tx = self._begin()
        try:
            yield tx
            try:
                await self._commit(tx)
            except StoreUnavailable as lost:
                raise CommitUnknown(str(lost), tx.xid) from lost
        finally:
            tx.end()

    def _begin(self) -> TwinTransaction:
        return TwinTransaction(self.tables, self.now_us(), self.lock_s)

    def pause(self) -> Awaitable[None]:
        """Let other tasks run, as PostgreSQL would while it runs a statement."""
        return yield_once()

    async def _commit(self, tx: TwinTransaction) -> None:
        await tx.pause()
        tx.commit()

    async def due(self, lanes: Sequence[str], flows: FlowChecksums) -> Sequence[str]:
        await self.pause()
        now, ours = self.clock(), self.ours(flows)
        lapse(self.tables, now, self.lease_s)
        due = {
            transfer.kind.lane
            for transfer, due_s, _, _, held in self.tables.rows[TRANSFERS].values()
            if due_s <= now and not held and transfer.kind.flow in ours
        }
        return sorted(due.intersection(lanes))

    async def claim(self, lane: str, limit: int, flows: FlowChecksums) -> Sequence[Transfer]:
        await self.pause()
        now, holders = self.clock(), self.tables.holders
        lapse(self.tables, now, self.lease_s)
        rows: dict[Any, MemoryRow] = self.tables.rows[TRANSFERS]
        # Sorted with the numbers of the ids: these have the same order and compare faster.
        due = [
            (due_s, key.int, key)
            for key, (transfer, due_s, _, _, held) in rows.items()
            if due_s <= now and not held and transfer.kind.lane == lane
        ]
        if not due:
            return []
        due.sort()
        ours, claimed, leased_until_s = self.ours(flows), list[Transfer](), 0.0
        for _, _, key in due:
            if len(claimed) == limit:
                break
            transfer, _, deadline_s, ends_s, _ = rows[key]
            if transfer.kind.flow in ours and (TRANSFERS, key) not in holders:
                leased_until_s = leased_until_s or _after(self.now_us(), self.lease_s)
                counted = replace(transfer, kind=_with_attempt(transfer.kind))
                rows[key] = row = row_of((counted, leased_until_s, deadline_s, ends_s, False))
                claimed.append(self._as_read(row))
        return claimed

    async def lock(
        self, tx: TwinTransaction, transfers: Sequence[Transfer], after_lock: AfterLock = no_action
    ) -> Sequence[Transfer]:
        await tx.lock(TRANSFERS, sorted([t.id for t in transfers], key=_number))
        await after_lock()
        current = [_as_counted(tx, t) for t in transfers]
        if all(map(is_, current, transfers)):
            return transfers
        return [t for t in current if t is not None]

    async def reserve(self, tx: TwinTransaction, keys: Sequence[RequestKey]) -> None:
        await tx.pause()
        for key in sorted(keys, key=lambda k: (k.owner, k.text)):
            row = key.fingerprint, key.transfer_id
            if not await tx.insert(CIDS, (key.owner, key.text), row):
                raise KeyTaken("one of these requests is already known")

    async def write(
        self, tx: TwinTransaction, moves: Moves, leased: Sequence[bool]
    ) -> Sequence[Transfer]:
        """It pauses once per statement of PostgresStore: one, and one more for attempts."""
        if moves.created:
            await tx.pause()
        else:
            # Callers have locked the rows. If one has not, this waits for them, as an UPDATE would.
            current = [t.id for t in moves.transfers if _is_current(tx, t)]
            await tx.lock(TRANSFERS, sorted(current, key=_number))
        batch = written(moves, leased, tx.at_us)
        results = zip(batch.rows, batch.chains(), leased, strict=True)
        for row, (after, hashes, is_leased) in enumerate(results):
            self._row(tx, moves.move(row), after, hashes, is_leased)
        hand_over(tx, batch.held(), _after(tx.at_us, self.lease_s))
        if any(group.step.attempt for group in moves.groups):
            await tx.pause()
        return batch.rows

    def _row(
        self, tx: TwinTransaction, move: Move, after: Transfer, hashes: list[bytes], leased: bool
    ) -> None:
        ended_s = None  # The due time of a transfer that ends with this move: it does not change.
        if move.before is None:
            if move.after.id < tx.floor:
                raise BelowFloor("an id is below the floor of this store")
            ends_s = expires_s(tx.at_us, move)
            late_s = deadline_s(tx.at_us, move, ends_s)
        elif (row := _current_row(tx, move.before)) is not None:
            ends_s = row.expires_s
            late_s = deadline_s(tx.at_us, move, ends_s) if move.entries else row.deadline_s
            ended_s = row.due_s if after.kind.lane is None else None
        else:
            raise StoreFault(f"transfer {move.before.id} has moved although it was locked")
        due = self._due(tx, move, leased, late_s)
        if ended_s is not None:
            due = ended_s, late_s
        self._write(tx, move, hashes, row_of((after, *due, ends_s, False)))

    async def aborted(self, xids: Sequence[str | None]) -> bool:
        await self.pause()
        return all(
            xid is not None and xid not in self.tables.committed and xid not in self.tables.running
            for xid in xids
        )

    def _due(
        self, tx: TwinTransaction, move: Move, leased: bool, deadline_s: float | None
    ) -> tuple[float, float | None]:
        """When the row is due: at its deadline at the latest; from the start of the transaction."""
        due_s = _after(tx.at_us, self.lease_s if leased else move.delay_s)
        return (due_s if deadline_s is None else min(due_s, deadline_s)), deadline_s

    def _write(self, tx: TwinTransaction, move: Move, hashes: list[bytes], row: MemoryRow) -> None:
        id_ = row.transfer.id
        tx.put(TRANSFERS, id_, row)
        if move.entries:
            at_us, pairs = tx.at_us, zip(move.entries, hashes, strict=True)
            answers = [answered_by((entry, at_us, hashed)) for entry, hashed in pairs]
            tx.put(HISTORY, id_, (*(tx.get(HISTORY, id_) or ()), *answers))
        if move.attempt:
            retry = move.after.retries
            slot = {retry % ATTEMPTS_KEPT: (move.start, retry, move.attempt)}
            tx.put(ATTEMPTS, id_, (tx.get(ATTEMPTS, id_) or {}) | slot)

    async def look(self, keys: Sequence[tuple[int, str]]) -> KeyLookup:
        await self.pause()
        rows = [self.tables.rows[CIDS].get(key) for key in keys]
        at_us = id_time_us(self.now_us(), self.tables.floor)
        return KeyLookup(at_us, [None if row is None else self._known(*row) for row in rows])

    async def lowest(self, horizon_s: float) -> UUID:
        await self.pause()
        rows, in_lists = self.tables.rows[TRANSFERS].values(), listed(self.tables)
        found = [row.transfer for row in rows if not row.held or row.transfer.id in in_lists]
        open_: list[UUID] = [transfer.id for transfer in found if transfer.lane is not None]
        open_ += [row.request.id for row in self.tables.rows[INBOX].values() if not row.outcome]
        return min([first_id(self.now_us() // 1000 - int(horizon_s * 1000)), *open_])

    async def raise_to(self, floor: UUID) -> UUID:
        await self.pause()
        self.tables.floor = max(self.tables.floor, floor)
        return self.tables.floor

    def _known(self, fingerprint: bytes, id_: UUID) -> KnownRequest:
        row, request = self.tables.rows[TRANSFERS].get(id_), self.tables.rows[INBOX].get(id_)
        transfer = None if row is None else self._as_read(row)
        refusal = None if request is None else request.refusal
        return KnownRequest(fingerprint, id_, transfer, refusal)

    async def find(self, ids: Sequence[UUID]) -> Sequence[Transfer]:
        await self.pause()
        rows = self.tables.rows[TRANSFERS]
        return [self._as_read(rows[id_]) for id_ in ids if id_ in rows]

    async def ended(self, ids: Sequence[UUID]) -> Sequence[Transfer]:
        return [transfer for transfer in await self.find(ids) if transfer.lane is None]

    async def release(self, transfers: Sequence[Transfer]) -> None:
        await self.pause()
        tx = self._begin()

        def leased(transfer: Transfer) -> MemoryRow | None:
            row = _current_row(tx, transfer)
            return row if row is not None and row.transfer.kind.lane else None

        try:
            matches = sorted(filter(leased, transfers), key=lambda t: t.id.int)
            await tx.hold(TRANSFERS, [t.id for t in matches])
            for transfer in matches:
                if (row := leased(transfer)) is not None:
                    current, _, deadline_s, ends_s, _ = row
                    row = row_of((current, _after(tx.at_us, 0.0), deadline_s, ends_s, False))
                    tx.put(TRANSFERS, transfer.id, row)
            tx.commit()
        finally:
            tx.end()

    async def note_outage(self, lane: str, worker: str, attempts: int, reason: str) -> None:
        await self.pause()
        now_us, rows = self.now_us(), self.tables.rows[OUTAGES]
        noted = Outage(lane, now_us, attempts, [now_us], bounded(reason))
        rows[lane, worker] = memory_state.outage_noted(rows.get((lane, worker)), noted)

    async def end_outage(self, lane: str, worker: str) -> None:
        await self.pause()
        self.tables.rows[OUTAGES].pop((lane, worker), None)

    async def outages(self) -> Sequence[Outage]:
        await self.pause()
        return memory_state.outages(self.tables.rows[OUTAGES], self.now_us())

    async def askable(
        self, transfers: Sequence[Transfer], flows: FlowChecksums
    ) -> Sequence[Transfer]:
        await self.pause()
        ours = self.ours(flows)
        return [t for t in transfers if t.kind.flow in ours]

    def ours(self, flows: FlowChecksums) -> Collection[str]:
        """The flows whose installed table is the caller's; none while halted."""
        installed = {} if self.tables.halts else self.tables.flows
        if installed == flows:  # The usual case, without a loop.
            return installed
        return {name for name, checksum in flows.items() if installed.get(name) == checksum}

    async def mend_clock(self, beyond_s: float | None, limit: int) -> tuple[float, int]:
        await self.pause()
        now_us, tables = self.now_us(), self.tables
        behind_s, tables.latest_us = memory_state.clock_step(
            max(tables.latest_us, self._seen_us), now_us
        )
        self._seen_us = now_us
        if not behind_s and beyond_s is None:
            return 0.0, 0
        late_s, rows = _after(now_us, beyond_s or 0.0), tables.rows[TRANSFERS]
        late = [k for k, row in rows.items() if memory_state.is_late(row, late_s, now_us)]
        free = [key for key in late if (TRANSFERS, key) not in tables.holders]
        in_lists = listed(tables)
        waiting = [key for key in free if not rows[key].held][:limit]
        held = [key for key in free if rows[key].held and key in in_lists][:limit]
        rows |= {key: memory_state.due_now(rows[key], now_us) for key in (*waiting, *held)}
        if behind_s:
            lapse_all(tables, now_us / 1_000_000)
        requests = self.inbox.make_due(round(late_s * 1_000_000), now_us, limit)
        return behind_s, max(len(waiting), len(held), requests)

    async def halted(self) -> bool:
        await self.pause()
        return bool(self.tables.halts)

    async def halt(self, reason: str, actor: str) -> int:
        await self.pause()
        return self.tables.halts.add(reason, actor, self.now_us())

    async def halts(self) -> Sequence[Halt]:
        await self.pause()
        return self.tables.halts.shown()

    async def resume(
        self, reason: str, actor: str, ids: Sequence[int] | None = None
    ) -> Sequence[Halt]:
        assert all((reason, actor)), "a halt is ended with an actor and a reason"
        await self.pause()
        return self.tables.halts.end(ids)

    def now_us(self) -> int:
        now_us = round(self.clock() * 1_000_000)
        self._seen_us = max(self._seen_us, now_us)
        return now_us

    def _as_read(self, row: MemoryRow) -> Transfer:
        transfer, _, deadline_s, _, _ = row
        kind, waited_us = transfer.kind, self.now_us() - transfer.updated_us
        expired = deadline_s is not None and deadline_s <= self.clock()
        if kind.expired is not expired:
            kind = kind.replace(expired=expired)
        return replace(transfer, kind=kind, waited_s=waited_us / 1_000_000)


def _current_row(tx: TwinTransaction, transfer: Transfer) -> MemoryRow | None:
    """The row of a transfer if it is still at this version, else None."""
    row: MemoryRow | None = tx.get(TRANSFERS, transfer.id)
    return row if row and row.transfer.kind.version == transfer.kind.version else None


def _is_current(tx: TwinTransaction, transfer: Transfer) -> bool:
    return _current_row(tx, transfer) is not None


def _as_counted(tx: TwinTransaction, transfer: Transfer) -> Transfer | None:
    if (row := _current_row(tx, transfer)) is None:
        return None
    kind = row.transfer.kind
    return as_counted(transfer, kind.attempts, kind.retries, kind.paged)


@lru_cache(4096)
def _with_attempt(kind: TransferKind) -> TransferKind:
    return kind.replace(attempts=kind.attempts + 1)


_number = attrgetter("int")
