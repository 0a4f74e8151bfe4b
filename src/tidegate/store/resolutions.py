"""Resolutions of open transfers: one person proposes, another confirms, carried out once."""

from uuid import UUID

import msgspec

from tidegate.core.sql import load
from tidegate.store.postgres import PostgresStore

STATEMENTS = load("tidegate.store", "resolutions.sql")


class Proposal(msgspec.Struct, frozen=True):
    """The answer that one person proposes for the open question of a transfer."""

    transfer_id: UUID
    version: int
    kind: str  # done, rejected, or suspense: where a refused refund goes instead.
    reason: str
    evidence: dict[str, str]
    proposed_by: str


class Resolution(msgspec.Struct, frozen=True):
    id: int
    proposal: Proposal
    confirmed_by: str | None
    outcome: str | None


async def propose(store: PostgresStore, proposal: Proposal) -> int:
    values = msgspec.structs.asdict(proposal)
    values["evidence"] = msgspec.json.encode(proposal.evidence).decode()
    [(id_,)] = await store.run(STATEMENTS["propose"], values)
    return int(id_)


async def find(store: PostgresStore, id_: int) -> Resolution | None:
    rows = await store.run(STATEMENTS["find"], {"id": id_})
    if not rows:
        return None
    row = rows[0]
    evidence = msgspec.json.decode(row[5], type=dict[str, str])
    proposal = Proposal(row[1], row[2], row[3], row[4], evidence, row[6])
    return Resolution(row[0], proposal, row[7], row[8])


async def confirm(store: PostgresStore, id_: int, confirmed_by: str) -> str | None:
    """Confirm a proposal and return the name of the person who first confirmed it. Return None if
    the proposal is closed, or if this person proposed it.
    """
    values = {"id": id_, "confirmed_by": confirmed_by}
    rows = await store.run(STATEMENTS["confirm"], values)
    return str(rows[0][0]) if rows else None


async def close(store: PostgresStore, id_: int, outcome: str) -> None:
    await store.run(STATEMENTS["close"], {"id": id_, "outcome": outcome})
