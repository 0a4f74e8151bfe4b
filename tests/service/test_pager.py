"""Alerts reach the webhook in order, even if it fails at first."""

import asyncio
from uuid import UUID

import msgspec
import pytest
from msgspec.structs import replace

import tidegate.service.pager
from tidegate.core.answers import Alarm
from tidegate.engine.alerts import Alert, AlertCode
from tidegate.service.pager import MAX_WAITING, AlertDropped, Pager


def test_an_alert_is_posted_until_it_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tidegate.service.pager, "PAUSE_S", 0.001)
    posted: list[object] = []
    fails = 2
    where = ("core", UUID(int=9), "COMPENSATING")
    stuck = Alert(Alarm.CRITICAL, AlertCode.REFUND_FAILING, "stuck", *where, 4, 61.28, count=2)

    async def post(body: bytes) -> bool:
        nonlocal fails
        fails -= 1
        if fails < 0:
            posted.append(msgspec.json.decode(body))
        return fails < 0

    async def main() -> None:
        pager = Pager(post)

        async def deliver() -> None:
            while True:
                await pager.deliver()

        running = asyncio.create_task(deliver())
        pager.notify(Alert(Alarm.NONE, AlertCode.STORE_UNAVAILABLE, "not for the webhook"))
        pager.notify(stuck)
        pager.notify(Alert(Alarm.HALT, AlertCode.BOOKS_DISAGREE, "the books differ"))
        pager.notify(replace(stuck, alarm=Alarm.NONE, cause="cleared: stuck", cleared=True))
        for _ in range(200):
            if len(posted) == 3:
                break
            await asyncio.sleep(0.01)
        running.cancel()

    asyncio.run(main())
    known = {
        "code": "refund_failing",
        "lane": "core",
        "transfer": "00000000000000000000000009",
        "state": "COMPENSATING",
        "retries": 4,
        "age_s": 61.3,
        "count": 2,
    }
    assert posted == [
        {"alarm": "CRITICAL", "cause": "stuck", **known},
        {"alarm": "HALT", "cause": "the books differ", "code": "books_disagree"},
        {"alarm": "NONE", "cause": "cleared: stuck", **known, "cleared": True},
    ], "with the code, ULID, retries and age; and that it is cleared"


def test_alerts_that_wait_at_shutdown_are_still_posted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tidegate.service.pager, "PAUSE_S", 0.001)
    posted: list[bytes] = []

    async def post(body: bytes) -> bool:
        posted.append(body)
        if len(posted) == 1:
            raise ZeroDivisionError("a planted bug")
        return True

    async def main() -> None:
        pager = Pager(post)
        pager.notify(Alert(Alarm.CRITICAL, AlertCode.ENGINE_DIED, "one"))
        pager.notify(Alert(Alarm.CRITICAL, AlertCode.ENGINE_DIED, "two"))
        with pytest.raises(ZeroDivisionError):
            await pager.deliver()
        await asyncio.wait_for(pager.flush(5.0), 2.0)

    asyncio.run(main())
    assert [msgspec.json.decode(body)["cause"] for body in posted] == ["one", "one", "two"]


def test_an_alert_that_is_never_accepted_is_dropped_with_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tidegate.service.pager, "PAUSE_S", 0.001)

    async def refuse(_: bytes) -> bool:
        return False

    async def main() -> None:
        pager = Pager(refuse)
        pager.notify(Alert(Alarm.CRITICAL, AlertCode.ENGINE_DIED, "one"))
        with pytest.raises(AlertDropped):
            await pager.deliver()
        monkeypatch.setattr(tidegate.service.pager, "IDLE_S", 0.01)
        await pager.deliver()

    asyncio.run(main())


def test_a_failing_webhook_blocks_nothing_and_its_queue_is_bounded() -> None:
    async def refuse(_: bytes) -> bool:
        return False

    async def main() -> None:
        pager = Pager(refuse)
        for n in range(MAX_WAITING + 50):
            pager.notify(Alert(Alarm.PAGE, AlertCode.TRANSFER_STUCK, f"number {n}"))
        assert pager._waiting.qsize() == MAX_WAITING
        Pager(None).notify(Alert(Alarm.HALT, AlertCode.BOOKS_DISAGREE, "no webhook, no queue"))

    asyncio.run(main())
