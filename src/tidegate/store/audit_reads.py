"""What the audit reads of a store: everything of one moment, in pages; and the brake it pulls."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from enum import Enum, auto
from itertools import groupby
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from tidegate.core.account import Account
from tidegate.core.answers import NO_EVIDENCE
from tidegate.core.kind import Parties, Party
from tidegate.core.sql import load, numbers, texts, uuids
from tidegate.core.transfer import HistoryEntry
from tidegate.store import transaction
from tidegate.store.postgres import PostgresStore
from tidegate.store.transaction import PostgresTransaction

STATEMENTS = load("tidegate.store", "audit.sql")
FIRST = UUID(int=0)
BY_CREATION = {"mode": "on", "plans": "force_custom_plan"}
AS_USUAL = {"mode": "off", "plans": "auto"}
MAX_FOUND = 20  # Of one kind of fault: then somebody looks anyway.

_PARTIES = msgspec.json.Decoder(dict[str, Party])
_EVIDENCE = msgspec.json.Decoder(dict[str, str])

Held = Mapping[tuple[int, int], int]  # By owner and asset.


class AuditedRow(NamedTuple):
    """A transfer as far as the audit looks at it."""

    id: UUID
    owner: int
    flow: str
    state: str
    lane: str | None
    version: int
    parties: Parties
    asset_id: int
    amount: int
    head_hash: bytes
    keyed: bool  # Its caller's key leads to it.
    fee: int = 0


class HistoryRow(NamedTuple):
    """One row of the history."""

    entry: HistoryEntry
    at_us: int
    hash: bytes


class LedgerRow(NamedTuple):
    """One entry of what the ledger did under one key."""

    transfer_id: UUID
    version: int
    account: Account
    verb: str
    amount: int
    result: str
    delta: int
    held_delta: int
    balance_after: int
    entry: int = 0


class AuditCase(NamedTuple):
    """A transfer with all that is known about it on our side."""

    row: AuditedRow
    history: Sequence[HistoryRow]
    operations: Sequence[LedgerRow]


class FlowLeg(NamedTuple):
    """The question of a state, as the history of other systems is counted by."""

    flow: str
    state: str
    role: str
    units: int


class AuditSnapshot:
    """One moment of a store. It stays as it is however long the audit takes."""

    def __init__(self, tx: PostgresTransaction, at_us: int) -> None:
        self._tx = tx
        self.at_us = at_us

    async def _rows(self, name: str, **values: object) -> list[Any]:
        return await self._tx.fetch(STATEMENTS[name], values)

    async def flows(self) -> Mapping[str, str]:
        """The checksum of each flow that is installed."""
        return dict(await self._tx.fetch(transaction.STATEMENTS["flows"], {}))

    async def books(self) -> Mapping[tuple[str, int], tuple[int, int]]:
        """Available and held, by book and asset."""
        return {(book, asset): (a, h) for book, asset, a, h in await self._rows("books")}

    async def owners(self, after: int, limit: int) -> Held:
        return _held(await self._rows("owners", after=after, limit=limit))

    async def owners_named(self, owners: Sequence[int]) -> Held:
        return _held(await self._rows("owners_named", owners=numbers(owners)))

    async def available(self, owners: Sequence[int]) -> Mapping[Account, int]:
        rows = await self._rows("available", owners=numbers(owners))
        return {Account(*row[:3]): row[3] for row in rows}

    async def open_ids(self, after: UUID, limit: int) -> Sequence[UUID]:
        return [row[0] for row in await self._rows("open_ids", after=after, limit=limit)]

    async def ids(self, after: UUID, limit: int) -> Sequence[tuple[UUID, bool]]:
        return await self._rows("ids", after=after, limit=limit)

    async def fresh(self, from_us: int, upto_us: int) -> Sequence[tuple[UUID, bool, int]]:
        """Transfers created in that time: id, whether it has ended, and when it was created."""
        await self._tx.post(STATEMENTS["bitmaps"], BY_CREATION)
        rows = await self._rows("fresh", from_us=from_us, upto_us=upto_us)
        await self._tx.post(STATEMENTS["bitmaps"], AS_USUAL)
        return rows

    async def known(self, ids: Sequence[UUID]) -> frozenset[UUID]:
        return frozenset(row[0] for row in await self._rows("seen", ids=uuids(ids)))

    async def cases(self, ids: Sequence[UUID]) -> Sequence[AuditCase]:
        wanted = uuids(ids)
        rows = await self._rows("rows", ids=wanted)
        answers = await self._rows("answers", ids=wanted)
        operations = await self._rows("operations", ids=wanted)
        told = {id_: [_kept(a) for a in group] for id_, group in groupby(answers, lambda a: a[0])}
        moved: dict[UUID, list[LedgerRow]] = {}
        for o in operations:
            moved.setdefault(o[0], []).append(LedgerRow(o[0], o[1], Account(*o[2:5]), *o[5:]))
        return [AuditCase(r, told.get(r.id, ()), moved.get(r.id, ())) for r in map(_row, rows)]

    async def strays(self, after: UUID, upto: UUID) -> Sequence[UUID]:
        rows = await self._rows("strays", after=after, upto=upto, limit=MAX_FOUND)
        return [row[0] for row in rows]

    async def accounts(self, owners: Sequence[int] | None = None) -> Sequence[Account]:
        """Those that do not follow from their operations; of all owners, or of some."""
        everyone, named = owners is None, numbers(owners or ())
        rows = await self._rows("accounts", everyone=everyone, owners=named, limit=MAX_FOUND)
        return [Account(*row) for row in rows]

    async def suspects(self, owners: Sequence[int]) -> Sequence[int]:
        """Those of some owners whose accounts do not follow from their own transfers. All of them:
        others may have paid them, and which one is wrong is not known yet.
        """
        rows = await self._rows("owner_accounts", owners=numbers(owners))
        return [row[0] for row in rows]

    async def elsewhere(self, legs: Sequence[FlowLeg], read: Sequence[str]) -> Held:
        """What systems other than those that are read hold, by their own answers."""
        rows = await self._rows(
            "elsewhere",
            flows=texts(leg.flow for leg in legs),
            states=texts(leg.state for leg in legs),
            roles=texts(leg.role for leg in legs),
            units=numbers(leg.units for leg in legs),
            systems=texts(read),
        )
        return _held(rows)


@asynccontextmanager
async def audit_snapshot(store: PostgresStore) -> AsyncIterator[AuditSnapshot]:
    async with store.session() as pipe:
        opened = PostgresTransaction(pipe)
        try:
            opened.send(STATEMENTS["begin"], {})
            [(at_us, *_)] = await opened.fetch(STATEMENTS["stand"], {})
            yield AuditSnapshot(opened, at_us)
        finally:
            await pipe.roll_back()  # It has only read.


class HaltOutcome(Enum):
    """What came of pulling it."""

    PULLED = auto()
    HELD = auto()  # For the same reason, by an audit before this one.
    RELEASED = auto()  # Somebody has released it since the moment of which we speak.


async def halt_for_audit(store: PostgresStore, reason: str, seen_us: int) -> HaltOutcome:
    """Halt for what was seen at a moment, unless a person has resumed after it: look again then."""
    async with store.transaction() as tx:
        tx.send(STATEMENTS["alone"], {})
        values = {"seen_us": seen_us, "reason": reason}
        [(held, released)] = await tx.fetch(STATEMENTS["brake"], values)
        if held or released:
            return HaltOutcome.HELD if held else HaltOutcome.RELEASED
        await tx.post(transaction.STATEMENTS["halt"], {"reason": reason, "actor": "audit"})
        return HaltOutcome.PULLED


class TransferFacts(NamedTuple):
    """What an operation of a core must agree with."""

    version: int
    asset_id: int
    amount: int
    parties: Parties


async def transfer_facts(store: PostgresStore, ids: Sequence[UUID]) -> Mapping[UUID, TransferFacts]:
    """Transfers as they stand now, whatever moment is open."""
    rows = await store.run(STATEMENTS["seen"], {"ids": uuids(ids)})
    return {row[0]: TransferFacts(row[1], row[2], row[3], _PARTIES.decode(row[4])) for row in rows}


def _held(rows: Sequence[Any]) -> Held:
    return {(owner, asset_id): amount for owner, asset_id, amount in rows}


def _row(row: Sequence[Any]) -> AuditedRow:
    columns = list(row)
    columns[6] = _PARTIES.decode(columns[6])
    return AuditedRow(*columns)


def _kept(row: Sequence[Any]) -> HistoryRow:
    _, version, first, waypoints, last, verb, answer, reason, evidence, actor, at_us, hashed = row
    proof = NO_EVIDENCE if evidence is None else _EVIDENCE.decode(evidence)
    path = (first, *waypoints.split(), last)
    return HistoryRow(
        HistoryEntry(version, path, verb, answer, reason, proof, actor), at_us, hashed
    )


class AlertSign(NamedTuple):
    """One thing that the alert rules look at."""

    kind: str
    subject: str
    transfer_id: UUID | None
    state: str
    number: int
    among: int = 0
    retries: int | None = None  # Of the transfer.
    age_s: float | None = None
    flow: str | None = None
    reason: str | None = None


async def alert_signs(store: PostgresStore, values: Mapping[str, object]) -> Sequence[AlertSign]:
    """All signs at one moment; the bounds are in `values`."""
    async with store.transaction() as tx:
        await tx.post(STATEMENTS["bitmaps"], BY_CREATION)
        rows = await tx.fetch(STATEMENTS["watch"], {**values, "limit": MAX_FOUND})
    return [AlertSign(*row) for row in rows]
