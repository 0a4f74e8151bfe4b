"""Listen for notifications of a database. A notification is a hint and may be lost."""

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
    """`async with listener.on(pool)` calls `heard` for each event, and `begun` when it listens.

    A lost connection is opened again. Events in between are lost: a program that must not miss any
    reads the table in `begun`, and from time to time besides.
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
        task = asyncio.create_task(self._listen(address_of(pool)))
        try:
            yield self
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

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
            # Only after LISTEN, so that every row written after the callback's read is notified.
            self.begun()
            async for notice in connection.notifies():
                yield _event(notice.payload)


def _event(payload: str) -> Event:
    """Another program may send a payload that is not a JSON object: report it as it is."""
    try:
        event = json.loads(payload)
    except ValueError:
        event = None
    return event if isinstance(event, dict) else {"payload": payload}
