"""Alerts reach the webhook, in order, however often it fails first."""

import asyncio

import msgspec
import pytest

import tidegate.service.pager
from tidegate.core.answers import Alarm
from tidegate.engine.alerts import Alert
from tidegate.service.pager import MAX_WAITING, Pager


def test_an_alert_is_posted_until_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tidegate.service.pager, "PAUSE_S", 0.001)
    taken: list[object] = []
    fails = 2

    async def post(body: bytes) -> bool:
        nonlocal fails
        fails -= 1
        if fails < 0:
            taken.append(msgspec.json.decode(body))
        return fails < 0

    async def whole() -> None:
        pager = Pager(post)
        running = asyncio.create_task(pager.run())
        pager.notify(Alert(Alarm.NONE, "nobody needs to know"))
        pager.notify(Alert(Alarm.CRITICAL, "stuck", lane="core", state="TARGET_PENDING"))
        pager.notify(Alert(Alarm.HALT, "the books differ"))
        for _ in range(200):
            if len(taken) == 2:
                break
            await asyncio.sleep(0.01)
        running.cancel()

    asyncio.run(whole())
    assert taken == [
        {"alarm": "CRITICAL", "cause": "stuck", "lane": "core", "state": "TARGET_PENDING"},
        {"alarm": "HALT", "cause": "the books differ"},
    ]


def test_a_deaf_webhook_holds_nothing_up_and_fills_nothing() -> None:
    async def deaf(_: bytes) -> bool:
        return False

    async def whole() -> None:
        pager = Pager(deaf)
        for n in range(MAX_WAITING + 50):
            pager.notify(Alert(Alarm.PAGE, f"number {n}"))
        assert pager._waiting.qsize() == MAX_WAITING
        Pager(None).notify(Alert(Alarm.HALT, "no webhook, no queue"))

    asyncio.run(whole())
