"""Reads the operations of a trading core and compares each with the transfer it belongs to."""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from uuid import UUID

from tidegate.core.answers import Unreachable
from tidegate.core.wire import CoreEvent
from tidegate.engine.audit_rules import core_fits
from tidegate.store.audit_reads import transfer_facts
from tidegate.store.postgres import PostgresStore
from tidegate.systems.trading import TradingCoreClient

MAX_VIOLATIONS = 100
EVENTS_S = 30.0


class EventReader:
    """Follows the operations of a core. Each belongs to a transfer that exists, or is strange."""

    def __init__(self, store: PostgresStore, core: TradingCoreClient) -> None:
        self._store, self._core = store, core
        self._stream: AsyncGenerator[tuple[int, Sequence[CoreEvent]], None] | None = None
        self._reached = 0
        self._ahead: Sequence[CoreEvent] = ()
        self._strange: dict[tuple[UUID, int], str] = {}

    async def hear(self, upto: int, begin: int) -> AsyncIterator[CoreEvent]:
        """What was done up to a position, since the last time; the first time, since `begin`."""
        if self._stream is None:
            self._stream, self._reached, self._ahead = self._core.follow(begin), begin, ()
        while self._ahead or self._reached < upto:
            if not self._ahead:
                self._reached, self._ahead = await self._next(begin)
            cut = bisect_right(self._ahead, upto, key=lambda event: event.position)
            await self._compare(self._ahead[:cut])
            events, self._ahead = self._ahead[:cut], self._ahead[cut:]
            for event in events:
                yield event
            if self._ahead:
                break

    async def _next(self, begin: int) -> tuple[int, Sequence[CoreEvent]]:
        """The next piece. A stream that was lost meanwhile is taken up again, once."""
        for _ in range(2):
            if self._stream is None:
                self._stream = self._core.follow(max(begin, self._reached))
            try:
                async with asyncio.timeout(EVENTS_S):
                    return await anext(self._stream)
            except (Unreachable, TimeoutError, StopAsyncIteration) as lost:
                self._stream, why = None, lost
        raise Unreachable(f"the core's operations cannot be followed: {why}") from why

    async def _compare(self, events: Sequence[CoreEvent]) -> None:
        rows = await transfer_facts(self._store, list({event.transfer_id for event in events}))
        for event in events:
            row = rows.get(event.transfer_id)
            if row is None or event.version > row.version:
                self._note(event, "is of no transfer that we know")
            elif not core_fits(event, self._core.name, row):
                self._note(event, "is about something else than its transfer")

    def _note(self, event: CoreEvent, what: str) -> None:
        if len(self._strange) < MAX_VIOLATIONS:
            self._strange[event.transfer_id, event.version] = (
                f"the core's operation {event.position} ({event.verb.name.lower()} of "
                f"{event.amount} at {event.book.name} of {event.owner} under "
                f"{event.transfer_id}, {event.version}) {what}"
            )

    def orphans(self) -> Iterator[str]:
        yield from self._strange.values()

    async def close(self) -> None:
        if self._stream is not None:
            await self._stream.aclose()
            self._stream = None
