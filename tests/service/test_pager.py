"""Alerts reach the webhook, in order, however often it fails first."""

import asyncio
from uuid import UUID

import msgspec
import pytest
from msgspec.structs import replace

import tidegate.service.pager
from tidegate.core.answers import Alarm
from tidegate.engine.alerts import Alert, AlertCode
from tidegate.service.pager import MAX_WAITING, AlertDropped, Pager


def test_an_alert_is_posted_until_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tidegate.service.pager, "PAUSE_S", 0.001)
    taken: list[object] = []
    fails = 2
    where = ("core", UUID(int=9), "COMPENSATING")
    stuck = Alert(Alarm.CRITICAL, AlertCode.REFUND_FAILING, "stuck", *where, 4, 61.28, count=2)

    async def post(body: bytes) -> bool:
        nonlocal fails
        fails -= 1
        if fails < 0:
            taken.append(msgspec.json.decode(body))
        return fails < 0

    async def whole() -> None:
        pager = Pager(post)

        async def deliver() -> None:
            while True:
                await pager.deliver()

        running = asyncio.create_task(deliver())
        pager.notify(Alert(Alarm.NONE, AlertCode.STORE_UNAVAILABLE, "nobody needs to know"))
        pager.notify(stuck)
        pager.notify(Alert(Alarm.HALT, AlertCode.BOOKS_DISAGREE, "the books differ"))
        pager.notify(replace(stuck, alarm=Alarm.NONE, cause="cleared: stuck", cleared=True))
        for _ in range(200):
            if len(taken) == 3:
                break
            await asyncio.sleep(0.01)
        running.cancel()

    asyncio.run(whole())
    known = {
        "code": "refund_failing",
        "lane": "core",
        "transfer": "00000000000000000000000009",
        "state": "COMPENSATING",
        "retries": 4,
        "age_s": 61.3,
        "count": 2,
    }
    assert taken == [
        {"alarm": "CRITICAL", "cause": "stuck", **known},
        {"alarm": "HALT", "cause": "the books differ", "code": "books_disagree"},
        {"alarm": "NONE", "cause": "cleared: stuck", **known, "cleared": True},
    ], "with its code, its ULID, its retries and its age; and that it is over"


def test_what_waits_at_the_end_is_posted_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tidegate.service.pager, "PAUSE_S", 0.001)
    taken: list[bytes] = []

    async def post(body: bytes) -> bool:
        taken.append(body)
        if len(taken) == 1:
            raise ZeroDivisionError("a planted bug")
        return True

    async def whole() -> None:
        pager = Pager(post)
        pager.notify(Alert(Alarm.CRITICAL, AlertCode.ENGINE_DIED, "one"))
        pager.notify(Alert(Alarm.CRITICAL, AlertCode.ENGINE_DIED, "two"))
        with pytest.raises(ZeroDivisionError):
            await pager.deliver()
        await asyncio.wait_for(pager.flush(5.0), 2.0)

    asyncio.run(whole())
    assert [msgspec.json.decode(body)["cause"] for body in taken] == ["one", "one", "two"]


def test_an_alert_that_is_never_taken_is_dropped_and_said_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tidegate.service.pager, "PAUSE_S", 0.001)

    async def deaf(_: bytes) -> bool:
        return False

    async def whole() -> None:
        pager = Pager(deaf)
        pager.notify(Alert(Alarm.CRITICAL, AlertCode.ENGINE_DIED, "one"))
        with pytest.raises(AlertDropped):
            await pager.deliver()
        monkeypatch.setattr(tidegate.service.pager, "IDLE_S", 0.01)
        await pager.deliver()

    asyncio.run(whole())


def test_a_deaf_webhook_holds_nothing_up_and_fills_nothing() -> None:
    async def deaf(_: bytes) -> bool:
        return False

    async def whole() -> None:
        pager = Pager(deaf)
        for n in range(MAX_WAITING + 50):
            pager.notify(Alert(Alarm.PAGE, AlertCode.TRANSFER_STUCK, f"number {n}"))
        assert pager._waiting.qsize() == MAX_WAITING
        Pager(None).notify(Alert(Alarm.HALT, AlertCode.BOOKS_DISAGREE, "no webhook, no queue"))

    asyncio.run(whole())
