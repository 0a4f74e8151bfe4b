"""Requests in the inbox of either store, and engines that process them."""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb

from tests.conftest import SCHEMA
from tests.engine.rig import ASSET, OWNER, SPOT, WAIT_S, Rig, rigged
from tidegate.core.ports import InboxRequest, System
from tidegate.core.request import AccountType, Asset, Request, TransferRequest, internal_transfer
from tidegate.engine.engine import Engine
from tidegate.engine.inbox_reader import Form
from tidegate.engine.request_forms import forms_of
from tidegate.store.inbox import INBOX, MemoryInboxRow
from tidegate.store.memory_store import CIDS, MemoryStore
from tidegate.systems.ledger import FUNDING

ACCOUNTS = {"FUNDING": AccountType("ledger", FUNDING), "SPOT": AccountType("venue", SPOT)}
ASSETS = {"USDT": Asset(ASSET, "USDT", 6)}
FORMS: Mapping[str, Form] = forms_of(ACCOUNTS, ASSETS)
TERMS = {"from": "SPOT", "to": "FUNDING"}
UNIT = 10**6
RICH = 1_000 * UNIT
_numbers = itertools.count(1)


@dataclass
class Outcome:
    outcome: str | None
    refusal: str | None
    error: str | None
    attempts: int
    due_in_s: float


def wanted(amount: int, cid: str | None = None, owner: int = OWNER) -> Request:
    """The same request as a caller of the library would make it."""
    text = f"{amount // UNIT}.{amount % UNIT:06d}"
    checked = internal_transfer(
        TransferRequest(TERMS["from"], TERMS["to"], "USDT", text, cid), owner, ACCOUNTS, ASSETS
    )
    assert not isinstance(checked, str)
    return checked.request


class InboxClient:
    """Inserts requests into the inbox of a rig's store, and reads their rows."""

    def __init__(self, rig: Rig, database: str) -> None:
        self.rig, self.database = rig, database
        if not isinstance(rig.store, MemoryStore):
            for flow in FORMS:
                self.sql("INSERT INTO inbox_grants VALUES ('tidegate_inbox', %s)", flow)

    def sql(self, statement: str, *values: object) -> list[Any]:
        with psycopg.connect(self.database, autocommit=True) as connection:
            connection.execute(f"SET search_path TO {SCHEMA}, tidegate")
            cursor = connection.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []

    def insert(
        self, amount: int, cid: str | None = None, expires_in_s: float | None = None
    ) -> UUID:
        if isinstance(self.rig.store, MemoryStore):
            return self._insert_in_twin(amount, cid, expires_in_s)
        [(id_,)] = self.sql(
            "SELECT request_transfer('internal_transfer', %s, 'USDT', %s::numeric / 1000000, %s,"
            " %s, now() + %s * interval '1 second')",
            OWNER,
            amount,
            Jsonb(TERMS),
            cid,
            expires_in_s,
        )
        assert isinstance(id_, UUID)
        return id_

    def _insert_in_twin(self, amount: int, cid: str | None, expires_in_s: float | None) -> UUID:
        store = self.rig.store
        assert isinstance(store, MemoryStore)
        now_us = store.now_us()
        id_ = UUID(int=(now_us // 1000) << 80 | 1 << 60 | next(_numbers))
        expires_us = None if expires_in_s is None else now_us + round(expires_in_s * 1e6)
        request = InboxRequest(
            id_,
            OWNER,
            "internal_transfer",
            ASSET,
            amount,
            TERMS,
            space="",
            cid=cid,
            expires_us=expires_us,
            expired=False,
            attempts=0,
        )
        store.tables.rows[CIDS][OWNER, cid or str(id_)] = (wanted(amount, cid).fingerprint(), id_)
        store.tables.rows[INBOX][id_] = MemoryInboxRow(request, now_us)
        return id_

    def row(self, id_: UUID) -> Outcome:
        store = self.rig.store
        if isinstance(store, MemoryStore):
            row: MemoryInboxRow = store.tables.rows[INBOX][id_]
            due_in_s = (row.due_us - store.now_us()) / 1e6
            return Outcome(row.outcome, row.refusal, row.error, row.request.attempts, due_in_s)
        [found] = self.sql(
            "SELECT outcome, refusal, error, attempts,"
            " extract(epoch FROM due_at - now())::float8 FROM inbox WHERE id = %s",
            id_,
        )
        return Outcome(*found)

    async def until(self, id_: UUID, holds: Callable[[Outcome], bool]) -> Outcome:
        until_s = time.monotonic() + WAIT_S
        while not holds(found := self.row(id_)):
            assert time.monotonic() < until_s, f"still {found}; {self.rig.alerts}"
            await asyncio.sleep(0.02)
        return found

    async def decided(self, *ids: UUID) -> list[Outcome]:
        return [await self.until(id_, lambda found: found.outcome is not None) for id_ in ids]

    def engine(
        self,
        seed: int = 1,
        outside: Sequence[System] | None = None,
        forms: Mapping[str, Form] = FORMS,
    ) -> Engine[Any]:
        parts = replace(self.rig.parts(seed), forms=forms)
        return Engine(parts if outside is None else replace(parts, outside=outside))


InboxScene = Callable[[InboxClient], Awaitable[None]]
PlayInbox: TypeAlias = Callable[[InboxScene], None]


def player(kind: str, database: str) -> PlayInbox:
    async def run(scene: InboxScene) -> None:
        async with rigged(kind, database) as rig:
            await rig.endow(RICH)
            await scene(InboxClient(rig, database))

    return lambda scene: asyncio.run(run(scene))
