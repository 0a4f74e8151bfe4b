"""The audit's reads of a store: one snapshot, read in pages; and the audit's halt."""

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
DEFAULT_PLANS = {"mode": "off", "plans": "auto"}
MAX_FOUND = 20  # Findings of one kind: with so many, an operator must investigate anyway.

_PARTIES = msgspec.json.Decoder(dict[str, Party])
_EVIDENCE = msgspec.json.Decoder(dict[str, str])

Held = Mapping[tuple[int, int], int]  # By owner and asset.


class AuditedRow(NamedTuple):
    """The columns of a transfer that the audit needs."""

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
    keyed: bool  # Its caller's key belongs to it.
    fee: int = 0


class HistoryRow(NamedTuple):
    """One row of the history."""

    entry: HistoryEntry
    at_us: int
    hash: bytes


class LedgerRow(NamedTuple):
    """One operation of the ledger under one operation key."""

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
    """A transfer with its history and its ledger operations."""

    row: AuditedRow
    history: Sequence[HistoryRow]
    operations: Sequence[LedgerRow]


class FlowLeg(NamedTuple):
    """The role and the units that a state's answer adds to the sums of other systems."""

    flow: str
    state: str
    role: str
    units: int


class AuditSnapshot:
    """A snapshot of a store. It does not change while the audit runs."""

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
        """Transfers created in this time range: id, whether it has ended, and creation time."""
        await self._tx.post(STATEMENTS["bitmaps"], BY_CREATION)  # Until the rows are read.
        rows = await self._rows("fresh", from_us=from_us, upto_us=upto_us)
        await self._tx.post(STATEMENTS["bitmaps"], DEFAULT_PLANS)
        return rows

    async def known(self, ids: Sequence[UUID]) -> frozenset[UUID]:
        return frozenset(row[0] for row in await self._rows("seen", ids=uuids(ids)))

    async def cases(self, ids: Sequence[UUID]) -> Sequence[AuditCase]:
        id_array = uuids(ids)
        rows = await self._rows("rows", ids=id_array)
        answers = await self._rows("answers", ids=id_array)
        operations = await self._rows("operations", ids=id_array)
        history = {
            id_: [_history_row(row) for row in group]
            for id_, group in groupby(answers, lambda row: row[0])
        }
        ledger: dict[UUID, list[LedgerRow]] = {}
        for o in operations:
            ledger.setdefault(o[0], []).append(LedgerRow(o[0], o[1], Account(*o[2:5]), *o[5:]))
        return [
            AuditCase(row, history.get(row.id, ()), ledger.get(row.id, ()))
            for row in map(_audited_row, rows)
        ]

    async def strays(self, after: UUID, upto: UUID) -> Sequence[UUID]:
        rows = await self._rows("strays", after=after, upto=upto, limit=MAX_FOUND)
        return [row[0] for row in rows]

    async def accounts(self, owners: Sequence[int] | None = None) -> Sequence[Account]:
        """Accounts that do not agree with their operations; of all owners, or of the given ones."""
        everyone, named = owners is None, numbers(owners or ())
        rows = await self._rows("accounts", everyone=everyone, owners=named, limit=MAX_FOUND)
        return [Account(*row) for row in rows]

    async def suspects(self, owners: Sequence[int]) -> Sequence[int]:
        """The given owners whose accounts do not agree with their own transfers. All are returned:
        other owners may have paid them, so it is not known yet which account is wrong.
        """
        rows = await self._rows("owner_accounts", owners=numbers(owners))
        return [row[0] for row in rows]

    async def elsewhere(self, legs: Sequence[FlowLeg], read: Sequence[str]) -> Held:
        """The amounts in all systems but the ones in `read`, computed from their answers."""
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
        tx = PostgresTransaction(pipe)
        try:
            tx.send(STATEMENTS["begin"], {})
            [(at_us, *_)] = await tx.fetch(STATEMENTS["snapshot_time"], {})
            yield AuditSnapshot(tx, at_us)
        finally:
            await pipe.roll_back()  # The transaction only read, so there is nothing to commit.


class HaltOutcome(Enum):
    """The outcome of a halt by the audit."""

    HALTED = auto()
    ALREADY_HALTED = auto()  # By an earlier audit, for the same reason.
    RESUMED = auto()  # An operator has resumed since the snapshot; nothing was halted.


async def halt_for_audit(store: PostgresStore, reason: str, seen_us: int) -> HaltOutcome:
    """Halt because of what was found at `seen_us`. If an operator has resumed since then, do not
    halt: the problem may be corrected, and the caller must read again.
    """
    async with store.transaction() as tx:
        tx.send(STATEMENTS["lock_halts"], {})
        values = {"seen_us": seen_us, "reason": reason}
        [(halted, resumed)] = await tx.fetch(STATEMENTS["halt_status"], values)
        if halted or resumed:
            return HaltOutcome.ALREADY_HALTED if halted else HaltOutcome.RESUMED
        await tx.post(transaction.STATEMENTS["halt"], {"reason": reason, "actor": "audit"})
        return HaltOutcome.HALTED


class TransferFacts(NamedTuple):
    """The fields of a transfer with which a core's operation must agree."""

    version: int
    asset_id: int
    amount: int
    parties: Parties


async def transfer_facts(store: PostgresStore, ids: Sequence[UUID]) -> Mapping[UUID, TransferFacts]:
    """The transfers as they are now, not as they are in an open snapshot."""
    rows = await store.run(STATEMENTS["seen"], {"ids": uuids(ids)})
    return {row[0]: TransferFacts(row[1], row[2], row[3], _PARTIES.decode(row[4])) for row in rows}


def _held(rows: Sequence[Any]) -> Held:
    return {(owner, asset_id): amount for owner, asset_id, amount in rows}


def _audited_row(row: Sequence[Any]) -> AuditedRow:
    columns = list(row)
    columns[6] = _PARTIES.decode(columns[6])
    return AuditedRow(*columns)


def _history_row(row: Sequence[Any]) -> HistoryRow:
    _, version, first, waypoints, last, verb, answer, reason, evidence, actor, at_us, hashed = row
    decoded = NO_EVIDENCE if evidence is None else _EVIDENCE.decode(evidence)
    path = (first, *waypoints.split(), last)
    return HistoryRow(
        HistoryEntry(version, path, verb, answer, reason, decoded, actor), at_us, hashed
    )


class AlertSign(NamedTuple):
    """One finding that the alert rules judge."""

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
    """All signs in one snapshot; `values` contains the limits."""
    async with store.transaction() as tx:
        await tx.post(STATEMENTS["bitmaps"], BY_CREATION)
        rows = await tx.fetch(STATEMENTS["watch"], {**values, "limit": MAX_FOUND})
    return [AlertSign(*row) for row in rows]
