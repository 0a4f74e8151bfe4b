"""Reads for users and operators: lists, searches, histories. Nothing here moves money."""

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

import msgspec

from tidegate.core.flow import Flow
from tidegate.core.kind import Party, Transfer, transfer_with
from tidegate.core.sql import load, texts
from tidegate.store.inbox import INBOX
from tidegate.store.postgres import PostgresStore
from tidegate.store.rows import TRANSFER_COLUMNS, transfer_from

STATEMENTS = {
    name: statement.replace("{transfer}", TRANSFER_COLUMNS)
    for name, statement in load("tidegate.store", "operator_reads.sql").items()
}
NEWEST = UUID(int=2**128 - 1)


class HistoryAnswer(msgspec.Struct, frozen=True):
    """One answer in the history of a transfer."""

    version: int
    path: tuple[str, ...]
    verb: str
    answer: str
    reason: str
    evidence: dict[str, str]
    actor: str
    at_us: int
    hash: str


class HistoryAttempt(msgspec.Struct, frozen=True):
    version: int
    retry: int
    reason: str
    at_us: int


class Search(msgspec.Struct, frozen=True):
    """The filters of an operator's search. A filter that is None is not applied."""

    owner: int | None = None
    flow: str | None = None
    state: str | None = None


class LaneBacklog(msgspec.Struct, frozen=True):
    """The open transfers in one state of one lane."""

    lane: str
    flow: str
    state: str
    count: int
    oldest_s: float


class AssetChange(msgspec.Struct, frozen=True):
    code: str
    status: str | None = None
    enabled: bool | None = None
    minimum: int | None = None
    maximum: int | None = None
    unbounded: bool = False


async def one(store: PostgresStore, id_: UUID) -> Transfer | None:
    rows = await store.run(STATEMENTS["one"], {"id": id_})
    return transfer_from(rows[0]) if rows else None


async def one_or_requested(store: PostgresStore, id_: UUID) -> Transfer | None:
    """A transfer, or an inbox request shown as a transfer: PENDING, or FAILED if refused."""
    if transfer := await one(store, id_):
        return transfer
    for row in await store.run(STATEMENTS["requested"], {"id": id_}):
        if row[3] == "created":
            return await one(store, id_)  # It was created after the first read.
        return _requested(*row)
    return None


def _requested(*row: Any) -> Transfer:
    id_, owner, flow, outcome, terms, asset_id, amount, cid, refusal, *times = row
    named = msgspec.json.decode(terms, type=dict[str, str])
    # The books are not known before the engine takes the request: show the names that the caller
    # sent.
    parties = {
        role: Party("", named.get(term, ""), owner)
        for role, term in (("source", "from"), ("target", "to"))
    }
    state, lane = ("PENDING", INBOX) if outcome is None else ("FAILED", None)
    created_us, updated_us = times
    return transfer_with(
        parties,
        id=id_,
        owner=owner,
        flow=flow,
        state=state,
        lane=lane,
        asset_id=asset_id,
        amount=amount,
        cid=cid,
        error=refusal,
        created_us=created_us,
        updated_us=updated_us,
    )


async def list_of_owner(
    store: PostgresStore, owner: int, state: str | None, before: UUID | None, limit: int
) -> Sequence[Transfer]:
    values = {"owner": owner, "state": state, "before": before, "limit": limit}
    return [transfer_from(r) for r in await store.run(STATEMENTS["list_of_owner"], values)]


async def search(
    store: PostgresStore, filters: Search, before: UUID, limit: int
) -> Sequence[Transfer]:
    values = msgspec.structs.asdict(filters) | {"before": before, "limit": limit}
    return [transfer_from(r) for r in await store.run(STATEMENTS["search"], values)]


async def stuck(
    store: PostgresStore, flows: Iterable[Flow], stuck_s: float, before: UUID, limit: int
) -> Sequence[Transfer]:
    waits = [(flow.name, state) for flow in flows for state in flow.waiting_states]
    values = {
        "stuck_s": stuck_s,
        "before": before,
        "limit": limit,
        "waits_flows": texts(flow for flow, _ in waits),
        "waits_states": texts(state for _, state in waits),
    }
    return [transfer_from(r) for r in await store.run(STATEMENTS["stuck"], values)]


async def history(store: PostgresStore, id_: UUID) -> Sequence[HistoryAnswer]:
    rows = await store.run(STATEMENTS["history"], {"id": id_})
    return [
        HistoryAnswer(
            version=row[0],
            path=(row[1], *row[2].split(), row[3]),
            verb=row[4],
            answer=row[5],
            reason=row[6],
            evidence=msgspec.json.decode(row[7], type=dict[str, str]) if row[7] else {},
            actor=row[8],
            at_us=row[9],
            hash=row[10].hex(),
        )
        for row in rows
    ]


async def attempts(store: PostgresStore, id_: UUID) -> Sequence[HistoryAttempt]:
    return [HistoryAttempt(*row) for row in await store.run(STATEMENTS["attempts"], {"id": id_})]


async def set_asset(store: PostgresStore, change: AssetChange) -> bool:
    """Change the settings of an asset; False if the asset does not exist."""
    return bool(await store.run(STATEMENTS["set_asset"], msgspec.structs.asdict(change)))


async def backlog(store: PostgresStore) -> Sequence[LaneBacklog]:
    return [LaneBacklog(*row) for row in await store.run(STATEMENTS["backlog"], {})]


async def about_how_many(store: PostgresStore) -> int:
    """The planner's estimate of the number of transfers. It costs nothing; use it for progress."""
    [(estimated,)] = await store.run(STATEMENTS["about_how_many"], {})
    return int(estimated)
