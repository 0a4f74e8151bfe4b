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
    """Follows the operations of a core, and notes those that match no transfer."""

    def __init__(self, store: PostgresStore, core: TradingCoreClient) -> None:
        self._store, self._core = store, core
        self._stream: AsyncGenerator[tuple[int, Sequence[CoreEvent]], None] | None = None
        self._reached = 0
        self._unread: Sequence[CoreEvent] = ()
        self._mismatches: dict[tuple[UUID, int], str] = {}

    async def read(self, upto: int, begin: int) -> AsyncIterator[CoreEvent]:
        """Operations up to a position, since the last call. The first call starts at `begin`."""
        if self._stream is None:
            self._stream, self._reached, self._unread = self._core.follow(begin), begin, ()
        while self._unread or self._reached < upto:
            if not self._unread:
                self._reached, self._unread = await self._next(begin)
            cut = bisect_right(self._unread, upto, key=lambda event: event.position)
            await self._compare(self._unread[:cut])
            events, self._unread = self._unread[:cut], self._unread[cut:]
            for event in events:
                yield event
            if self._unread:
                break

    async def _next(self, begin: int) -> tuple[int, Sequence[CoreEvent]]:
        """The next operations. If the stream was lost, it is opened again, once."""
        for _ in range(2):
            if self._stream is None:
                self._stream = self._core.follow(max(begin, self._reached))
            try:
                async with asyncio.timeout(EVENTS_S):
                    return await anext(self._stream)
            except (Unreachable, TimeoutError, StopAsyncIteration) as lost:
                self._stream, fault = None, lost
        raise Unreachable(f"the core's operations cannot be read: {fault}") from fault

    async def _compare(self, events: Sequence[CoreEvent]) -> None:
        rows = await transfer_facts(self._store, list({event.transfer_id for event in events}))
        for event in events:
            row = rows.get(event.transfer_id)
            if row is None or event.version > row.version:
                self._note(event, "belongs to no known transfer")
            elif not core_fits(event, self._core.name, row):
                self._note(event, "does not match its transfer")

    def _note(self, event: CoreEvent, problem: str) -> None:
        if len(self._mismatches) < MAX_VIOLATIONS:
            self._mismatches[event.transfer_id, event.version] = (
                f"the core operation at position {event.position} ({event.verb.name.lower()} of "
                f"{event.amount} smallest units, book {event.book.name} of owner {event.owner}, "
                f"transfer {event.transfer_id}, version {event.version}) {problem}"
            )

    def mismatches(self) -> Iterator[str]:
        yield from self._mismatches.values()

    async def close(self) -> None:
        if self._stream is not None:
            await self._stream.aclose()
            self._stream = None
