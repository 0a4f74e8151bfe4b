"""Of all processes on one store, one watches and audits; if it dies, another does."""

import asyncio
import zlib
from typing import Any

from psycopg import AsyncConnection
from psycopg import Error as PostgresError

from tidegate.core.ports import StoreUnavailable

LEAD = 7_305  # The first number of the lock; the second is made of the schema.
LOOK_S = 5.0
TRY_LOCK = "SELECT pg_try_advisory_lock(%s, %s)"


class Leadership:
    """Held by an advisory lock, which goes with its session, however the session ends."""

    def __init__(self, database: str, schema: str) -> None:
        self._database = database
        self._key = zlib.crc32(schema.encode()) % 2**31
        self._session: AsyncConnection[Any] | None = None
        self.held = False

    async def look(self) -> None:
        """Ask for the lock; or, while it is held, whether its session still lives."""
        try:
            async with asyncio.timeout(LOOK_S):
                self.held = await self._ask()
        except (PostgresError, TimeoutError) as fault:
            await self.close()
            raise StoreUnavailable(f"no session to lead by: {fault}") from fault

    async def _ask(self) -> bool:
        if self._session is None:
            self._session = await AsyncConnection.connect(self._database, autocommit=True)
        if self.held:
            await self._session.execute("SELECT true")
            return True
        cursor = await self._session.execute(TRY_LOCK, (LEAD, self._key))
        row = await cursor.fetchone()
        return row is not None and bool(row[0])

    async def close(self) -> None:
        self.held = False
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()
