"""Alerts on their way to people: counted, and posted to a webhook without holding anything up."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

from tidegate.core.answers import Alarm
from tidegate.engine.alerts import Alert

MAX_WAITING = 1_000  # Then the oldest is dropped: the log has them all.
TRIES = 5
PAUSE_S = 2.0

Post: TypeAlias = Callable[[bytes], Awaitable[bool]]  # True: it was taken.


class Pager:
    """Called by the engine from anywhere; posts from a task of its own."""

    def __init__(self, post: Post | None) -> None:
        self._post = post
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue(MAX_WAITING)

    def notify(self, alert: Alert) -> None:
        if self._post is None or alert.alarm is Alarm.NONE:
            return
        if self._waiting.full():
            self._waiting.get_nowait()
        self._waiting.put_nowait(encode(alert))

    async def run(self) -> None:
        while True:
            body = await self._waiting.get()
            for attempt in range(TRIES):
                assert self._post is not None, "nothing waits where nothing is posted"
                if await self._post(body):
                    break
                await asyncio.sleep(PAUSE_S * (attempt + 1))


def encode(alert: Alert) -> bytes:
    body = {
        "alarm": alert.alarm.name,
        "cause": alert.cause,
        "lane": alert.lane,
        "transfer": alert.transfer_id and str(alert.transfer_id),
        "state": alert.state,
    }
    return msgspec.json.encode({name: said for name, said in body.items() if said is not None})
