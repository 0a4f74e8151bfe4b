"""The inbox: transfers that programs request in the database; on PostgreSQL and in memory."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import msgspec

from tidegate.core.answers import bounded
from tidegate.core.ports import AfterLock, FlowChecksums, InboxRequest, no_action
from tidegate.core.sql import load, texts, uuids
from tidegate.store.rows import table_columns

if TYPE_CHECKING:
    from tidegate.store.memory_store import MemoryStore
    from tidegate.store.memory_transaction import TwinTransaction
    from tidegate.store.postgres import PostgresStore
    from tidegate.store.transaction import PostgresTransaction

STATEMENTS = load("tidegate.store", "inbox.sql")
INBOX = "inbox"

_TERMS = msgspec.json.Decoder(dict[str, str])


class PostgresInbox:
    def __init__(self, store: "PostgresStore") -> None:
        self._store = store

    async def claim(self, flows: FlowChecksums, limit: int) -> Sequence[InboxRequest]:
        values = {"limit": limit, "lease_s": self._store.lease_s, **table_columns(flows)}
        rows = await self._run("claim", **values)
        return [InboxRequest(*row)._replace(terms=_TERMS.decode(row[5])) for row in rows]

    async def take(
        self, tx: "PostgresTransaction", ids: Sequence[UUID], after_lock: AfterLock = no_action
    ) -> Sequence[UUID]:
        reply = tx.send(STATEMENTS["take"], {"ids": uuids(ids)})
        await after_lock()
        return [row[0] for row in await tx.rows(reply)]

    async def decide(self, tx: "PostgresTransaction", outcomes: Mapping[UUID, str | None]) -> None:
        values = {"ids": uuids(outcomes), "refusals": texts(outcomes.values())}
        await tx.post(STATEMENTS["decide"], values)

    async def postpone(self, ids: Sequence[UUID], reason: str, delay_s: float) -> None:
        await self._run("postpone", ids=uuids(ids), reason=bounded(reason), delay_s=delay_s)

    async def forget(self, older_s: float, limit: int) -> int:
        [(count,)] = await self._run("forget", older_s=older_s, limit=limit)
        return int(count)

    async def _run(self, name: str, **values: object) -> list[Any]:
        return await self._store.run(STATEMENTS[name], values)


class MemoryInboxRow(NamedTuple):
    """A row of the in-memory inbox: a request, with the columns that only the store needs."""

    request: InboxRequest
    due_us: int
    outcome: str | None = None
    refusal: str | None = None
    error: str | None = None
    decided_us: int = 0


class MemoryInbox:
    def __init__(self, store: "MemoryStore") -> None:
        self._store = store

    async def claim(self, flows: FlowChecksums, limit: int) -> Sequence[InboxRequest]:
        await self._store.pause()
        runnable = self._store.ours(flows)
        tables, now_us = self._store.tables, self._store.now_us()
        rows, claimed = tables.rows[INBOX], []
        waiting = [
            (row.due_us, key)
            for key, row in rows.items()
            if row.outcome is None
            and row.due_us <= now_us
            and row.request.flow in runnable
            and (INBOX, key) not in tables.holders
        ]
        for _, key in sorted(waiting)[:limit]:
            request = rows[key].request
            expired = request.expires_us is not None and request.expires_us <= now_us
            request = request._replace(attempts=request.attempts + 1, expired=expired)
            leased_us = now_us + round(self._store.lease_s * 1_000_000)
            rows[key] = rows[key]._replace(request=request, due_us=leased_us)
            claimed.append(request)
        return claimed

    async def take(
        self, tx: "TwinTransaction", ids: Sequence[UUID], after_lock: AfterLock = no_action
    ) -> Sequence[UUID]:
        await tx.lock(INBOX, sorted(ids))
        await after_lock()
        return [id_ for id_ in ids if tx.get(INBOX, id_).outcome is None]

    async def decide(self, tx: "TwinTransaction", outcomes: Mapping[UUID, str | None]) -> None:
        await tx.pause()
        for id_, refusal in outcomes.items():
            outcome = "created" if refusal is None else "refused"
            row = tx.get(INBOX, id_)._replace(outcome=outcome, refusal=refusal, error=None)
            tx.put(INBOX, id_, row._replace(decided_us=tx.at_us))

    async def postpone(self, ids: Sequence[UUID], reason: str, delay_s: float) -> None:
        await self._store.pause()
        rows, due_us = self._store.tables.rows[INBOX], self._store.now_us() + round(delay_s * 1e6)
        for id_ in ids:
            if rows[id_].outcome is None:
                rows[id_] = rows[id_]._replace(due_us=due_us, error=bounded(reason))

    def make_due(self, late_us: int, now_us: int, limit: int) -> int:
        """Make requests due now whose due time is after `late_us`: the clock was set back."""
        rows, holders = self._store.tables.rows[INBOX], self._store.tables.holders
        late = [k for k, row in rows.items() if not row.outcome and row.due_us > late_us]
        free = [key for key in late if (INBOX, key) not in holders][:limit]
        rows |= {key: rows[key]._replace(due_us=now_us) for key in free}
        return len(free)

    async def forget(self, older_s: float, limit: int) -> int:
        await self._store.pause()
        rows, until_us = self._store.tables.rows[INBOX], self._store.now_us() - older_s * 1e6
        old = [k for k, row in rows.items() if row.outcome and row.decided_us < until_us][:limit]
        for key in old:
            del rows[key]
        return len(old)
