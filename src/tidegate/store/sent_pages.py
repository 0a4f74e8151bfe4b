"""Which paged transfers somebody was told of, and which nobody was."""

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from tidegate.core.sql import load, uuids
from tidegate.store.postgres import PostgresStore

STATEMENTS = load("tidegate.store", "sent_pages.sql")
MAX_UNTOLD = 1_000


class UnsentPage(NamedTuple):
    id: UUID
    flow: str
    lane: str
    state: str
    retries: int
    age_s: float
    reason: str


async def mark_sent(store: PostgresStore, ids: Sequence[UUID]) -> None:
    await store.run(STATEMENTS["mark_told"], {"ids": uuids(ids)})


async def unsent(store: PostgresStore) -> Sequence[UnsentPage]:
    await store.run(STATEMENTS["forget_told"], {})
    rows = await store.run(STATEMENTS["untold"], {"limit": MAX_UNTOLD})
    return [UnsentPage(*row) for row in rows]
