"""Records for which paged transfers the page was sent, and finds those that were not sent."""

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from tidegate.core.sql import load, uuids
from tidegate.store.postgres import PostgresStore

STATEMENTS = load("tidegate.store", "sent_pages.sql")
MAX_UNSENT = 1_000


class UnsentPage(NamedTuple):
    id: UUID
    flow: str
    lane: str
    state: str
    retries: int
    age_s: float
    reason: str


async def mark_sent(store: PostgresStore, ids: Sequence[UUID]) -> None:
    await store.run(STATEMENTS["mark_sent"], {"ids": uuids(ids)})


async def unsent(store: PostgresStore) -> Sequence[UnsentPage]:
    await store.run(STATEMENTS["forget_sent"], {})
    rows = await store.run(STATEMENTS["unsent"], {"limit": MAX_UNSENT})
    return [UnsentPage(*row) for row in rows]
