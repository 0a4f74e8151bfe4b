"""Elects the one process of a store that watches and audits; if it dies, another takes over."""

import asyncio
import zlib
from typing import Any

from psycopg import AsyncConnection
from psycopg import Error as PostgresError

from tidegate.core.ports import StoreUnavailable

LOCK_CLASS = 7_305  # The first key of the advisory lock. The second is a CRC of the schema.
CHECK_TIMEOUT_S = 5.0
IDLE_TIMEOUT_S = 30.0  # The server ends a session that is idle for so long, which frees its lock.
PROBE_AFTER_S, PROBE_EVERY_S, PROBES = 10, 5, 3
TRY_LOCK = "SELECT pg_try_advisory_lock(%s, %s)"


class Leadership:
    """Leadership is an advisory lock. It is freed when its session ends, for whatever reason.

    Each check sends a statement to the server. So the lock of a process that was stopped, or whose
    host has vanished, is free after IDLE_TIMEOUT_S, and a lock that is held belongs to a process
    that still checks.
    """

    def __init__(self, database: str, schema: str) -> None:
        self._database = database
        self._key = zlib.crc32(schema.encode()) % 2**31
        self._session: AsyncConnection[Any] | None = None
        self.held = False  # This process is the leader.
        self.known = False  # At the last check there was a leader: this process or another.

    async def check(self) -> None:
        """Try to get the lock. If this process holds it, check that its session is alive."""
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                self.held = await self._ask()
        except (PostgresError, TimeoutError) as fault:
            await self.close()
            raise StoreUnavailable(f"cannot check which process is the leader: {fault}") from fault
        self.known = True

    async def _ask(self) -> bool:
        if self._session is None:
            self._session = await AsyncConnection.connect(
                self._database, autocommit=True, options=_options()
            )
        if self.held:
            await self._session.execute("SELECT true")
            return True
        cursor = await self._session.execute(TRY_LOCK, (LOCK_CLASS, self._key))
        row = await cursor.fetchone()
        return row is not None and bool(row[0])

    async def close(self) -> None:
        self.held = self.known = False
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()


def _options() -> str:
    """Make the server end the session soon after its client has stopped or vanished.

    The idle timeout ends it when the client sends nothing. The TCP settings end it when a reply
    cannot be delivered.
    """
    settings = {
        "idle_session_timeout": int(IDLE_TIMEOUT_S * 1000),
        "tcp_keepalives_idle": PROBE_AFTER_S,
        "tcp_keepalives_interval": PROBE_EVERY_S,
        "tcp_keepalives_count": PROBES,
        "tcp_user_timeout": (PROBE_AFTER_S + PROBE_EVERY_S * PROBES) * 1000,
    }
    return " ".join(f"-c {name}={value}" for name, value in settings.items())
