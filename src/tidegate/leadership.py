"""Of all processes on one store, one watches and audits; if it dies, another does."""

import asyncio
import zlib
from typing import Any

from psycopg import AsyncConnection
from psycopg import Error as PostgresError

from tidegate.core.ports import StoreUnavailable

LEAD = 7_305  # The first number of the lock; the second is made of the schema.
LOOK_S = 5.0
SILENT_S = 30.0  # The server ends a session that says nothing for so long, and its lock with it.
PROBE_AFTER_S, PROBE_EVERY_S, PROBES = 10, 5, 3
TRY_LOCK = "SELECT pg_try_advisory_lock(%s, %s)"


class Leadership:
    """Held by an advisory lock, which goes with its session, however the session ends.

    Whoever looks says something to the server. So the lock of a process that was stopped, or
    whose host has vanished, is free after SILENT_S, and a lock that is held is held by a process
    that looks.
    """

    def __init__(self, database: str, schema: str) -> None:
        self._database = database
        self._key = zlib.crc32(schema.encode()) % 2**31
        self._session: AsyncConnection[Any] | None = None
        self.held = False  # This process leads.
        self.known = False  # Some process leads, by the last look: this one or another.

    async def look(self) -> None:
        """Ask for the lock; or, while it is held, whether its session still lives."""
        try:
            async with asyncio.timeout(LOOK_S):
                self.held = await self._ask()
        except (PostgresError, TimeoutError) as fault:
            await self.close()
            raise StoreUnavailable(f"this process cannot find out who leads: {fault}") from fault
        self.known = True

    async def _ask(self) -> bool:
        if self._session is None:
            self._session = await AsyncConnection.connect(
                self._database, autocommit=True, options=_options()
            )
        if self.held:
            await self._session.execute("SELECT true")
            return True
        cursor = await self._session.execute(TRY_LOCK, (LEAD, self._key))
        row = await cursor.fetchone()
        return row is not None and bool(row[0])

    async def close(self) -> None:
        self.held = self.known = False
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()


def _options() -> str:
    """How soon the server notices that nobody is at the other end any more.

    By silence, whatever is at the other end; and by the network, so that a reply that cannot be
    delivered does not hold the session either.
    """
    settings = {
        "idle_session_timeout": int(SILENT_S * 1000),
        "tcp_keepalives_idle": PROBE_AFTER_S,
        "tcp_keepalives_interval": PROBE_EVERY_S,
        "tcp_keepalives_count": PROBES,
        "tcp_user_timeout": (PROBE_AFTER_S + PROBE_EVERY_S * PROBES) * 1000,
    }
    return " ".join(f"-c {name}={value}" for name, value in settings.items())
