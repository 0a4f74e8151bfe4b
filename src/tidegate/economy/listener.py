"""Listening to what a database tells. What is told is a hint, and may be missed."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, TypeAlias

import psycopg
from psycopg_pool import AsyncConnectionPool

from tidegate.economy.address import address_of

CHANNEL = "economy_events"
FIRST_S, CAP_S, DOUBLINGS = 0.1, 5.0, 10

Event: TypeAlias = Mapping[str, object]


class TelemetryListener:
    """`async with listener.on(pool)`: calls `heard` for every event, and `begun` when it listens.

    A connection that is lost is made anew. What was told meanwhile is lost: whoever must not miss
    anything looks at the table in `begun`, and now and then besides.
    """

    def __init__(
        self,
        channel: str = CHANNEL,
        heard: Callable[[Event], object] = lambda _: None,
        begun: Callable[[], object] = lambda: None,
    ) -> None:
        self.channel = channel
        self.heard = heard
        self.begun = begun
        self.connection: psycopg.AsyncConnection[Any] | None = None

    @contextlib.asynccontextmanager
    async def on(self, pool: AsyncConnectionPool[Any]) -> AsyncIterator["TelemetryListener"]:
        listening = asyncio.create_task(self._listen(address_of(pool)))
        try:
            yield self
        finally:
            listening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await listening

    async def _listen(self, address: str) -> None:
        failures = 0
        while True:
            try:
                async for event in self._events(address):
                    failures = 0
                    self.heard(event)
            except psycopg.Error:
                failures += 1
            await asyncio.sleep(min(FIRST_S * 2 ** min(failures, DOUBLINGS), CAP_S))

    async def _events(self, address: str) -> AsyncIterator[Event]:
        async with await psycopg.AsyncConnection.connect(address, autocommit=True) as connection:
            self.connection = connection
            await connection.execute(
                psycopg.sql.SQL("LISTEN {}").format(psycopg.sql.Identifier(self.channel))
            )
            # Only now, so that what is written after the look is told.
            self.begun()
            async for notice in connection.notifies():
                yield _read(notice.payload)


def _read(payload: str) -> Event:
    """What is no JSON object is somebody else's, and still says that something happened."""
    try:
        event = json.loads(payload)
    except ValueError:
        event = None
    return event if isinstance(event, dict) else {"payload": payload}
