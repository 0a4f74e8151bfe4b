"""Alerts on their way to people: counted, and posted to a webhook without holding anything up."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeAlias
from uuid import UUID

import msgspec

from tidegate.core.ports import StoreFault
from tidegate.engine.alerts import Alert, told_as

MAX_WAITING = 1_000  # Then the oldest is dropped: the log has them all.
TRIES = 5
PAUSE_S = 2.0
IDLE_S = 5.0

Post: TypeAlias = Callable[[bytes], Awaitable[bool]]  # True: it was taken.
Mark: TypeAlias = Callable[[Sequence[UUID]], Awaitable[None]]


class AlertDropped(Exception):
    """An alert was not taken, and is dropped: the log has it."""


class Pager:
    """Called by the engine from anywhere; posts from a task of its own, and marks what is told."""

    def __init__(self, post: Post | None) -> None:
        self._post = post
        self.mark: Mark | None = None  # Is told of which transfers somebody knows now.
        self._waiting: asyncio.Queue[Alert] = asyncio.Queue(MAX_WAITING)
        self._posting: Alert | None = None
        self._attempts = 0

    def notify(self, alert: Alert) -> None:
        # Without a webhook the log is what people read, and has it already.
        if not alert.is_news or (self._post is None and alert.transfer_id is None):
            return
        if self._waiting.full():
            self._waiting.get_nowait()
        self._waiting.put_nowait(alert)

    async def deliver(self) -> None:
        """Post the next alert; return when none comes for a while. Raise if it is not taken."""
        if self._posting is None:
            try:
                async with asyncio.timeout(IDLE_S):
                    self._posting = await self._waiting.get()
            except TimeoutError:
                return
        await self._post_it(self._posting)

    async def flush(self, within_s: float) -> None:
        """Before the end: post what waits, if that can be done in this time."""
        with suppress(TimeoutError, AlertDropped):
            async with asyncio.timeout(within_s):
                while self._posting is not None or not self._waiting.empty():
                    await self.deliver()

    async def _post_it(self, alert: Alert) -> None:
        while self._attempts < TRIES:
            self._attempts += 1  # Before the try: one that raises is no reason to try for ever.
            if self._post is None or await self._post(encode(alert)):
                self._posting, self._attempts = None, 0
                await self._mark(alert)
                return
            await asyncio.sleep(PAUSE_S * self._attempts)
        self._posting, self._attempts = None, 0
        raise AlertDropped(f"the webhook has not taken an alert in {TRIES} tries")

    async def _mark(self, alert: Alert) -> None:
        """So that nobody is told a second time. If it is not marked, whoever watches tells it."""
        if self.mark is not None and alert.transfer_id is not None and not alert.cleared:
            with suppress(StoreFault):
                await self.mark([alert.transfer_id, *alert.also])


def encode(alert: Alert) -> bytes:
    return msgspec.json.encode({"alarm": alert.alarm.name, "cause": alert.cause, **told_as(alert)})
