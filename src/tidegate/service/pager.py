"""Posts alerts to a webhook from a queue, so that the engine never waits for the webhook."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeAlias
from uuid import UUID

import msgspec

from tidegate.core.ports import StoreFault
from tidegate.engine.alerts import Alert, alert_fields

MAX_WAITING = 1_000  # Beyond this the oldest alert is dropped; the log contains all of them.
TRIES = 5
PAUSE_S = 2.0
IDLE_S = 5.0

Post: TypeAlias = Callable[[bytes], Awaitable[bool]]  # True: accepted.
Mark: TypeAlias = Callable[[Sequence[UUID]], Awaitable[None]]


class AlertDropped(Exception):
    """The webhook did not accept an alert, so it is dropped. The log contains it."""


class Pager:
    """Queues alerts of the engine, posts them from a background task and marks them as sent."""

    def __init__(self, post: Post | None) -> None:
        self._post = post
        self.mark: Mark | None = None  # Called with the transfers whose alert was delivered.
        self._waiting: asyncio.Queue[Alert] = asyncio.Queue(MAX_WAITING)
        self._posting: Alert | None = None
        self._attempts = 0

    def notify(self, alert: Alert) -> None:
        # Without a webhook people read the log, and the alert is already there.
        if not alert.notifies_people or (self._post is None and alert.transfer_id is None):
            return
        if self._waiting.full():
            self._waiting.get_nowait()
        self._waiting.put_nowait(alert)

    async def deliver(self) -> None:
        """Post the next alert. Return if none arrives for a while. Raise if it is not accepted."""
        if self._posting is None:
            try:
                async with asyncio.timeout(IDLE_S):
                    self._posting = await self._waiting.get()
            except TimeoutError:
                return
        await self._post_alert(self._posting)

    async def flush(self, within_s: float) -> None:
        """Before shutdown: post the queued alerts, as far as the time allows."""
        with suppress(TimeoutError, AlertDropped):
            async with asyncio.timeout(within_s):
                while self._posting is not None or not self._waiting.empty():
                    await self.deliver()

    async def _post_alert(self, alert: Alert) -> None:
        while self._attempts < TRIES:
            self._attempts += (
                1  # Counted before the call, so that a call that raises is counted too.
            )
            if self._post is None or await self._post(encode(alert)):
                self._posting, self._attempts = None, 0
                await self._mark(alert)
                return
            await asyncio.sleep(PAUSE_S * self._attempts)
        self._posting, self._attempts = None, 0
        raise AlertDropped(
            f"the webhook did not accept an alert after {TRIES} tries; it is dropped"
        )

    async def _mark(self, alert: Alert) -> None:
        """Prevent a second alert. The watching process resends alerts that are not marked."""
        if self.mark is not None and alert.transfer_id is not None and not alert.cleared:
            with suppress(StoreFault):
                await self.mark([alert.transfer_id, *alert.also])


def encode(alert: Alert) -> bytes:
    return msgspec.json.encode(
        {"alarm": alert.alarm.name, "cause": alert.cause, **alert_fields(alert)}
    )
