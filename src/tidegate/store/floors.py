"""The floor of a store's ids on PostgreSQL."""

from uuid import UUID

from tidegate.core.ids import first_id
from tidegate.core.sql import load
from tidegate.store.postgres import PostgresStore

STATEMENTS = load("tidegate.store", "floors.sql")


class PostgresFloors:
    def __init__(self, store: PostgresStore) -> None:
        self._store = store

    async def lowest(self, horizon_s: float) -> UUID:
        [(at_us, oldest)] = await self._store.run(STATEMENTS["lowest"], {})
        horizon = first_id(at_us // 1000 - int(horizon_s * 1000))
        return horizon if oldest is None else min(horizon, oldest)

    async def raise_to(self, floor: UUID) -> UUID:
        [(raised,)] = await self._store.run(STATEMENTS["raise"], {"floor": floor})
        return UUID(int=raised.int)
