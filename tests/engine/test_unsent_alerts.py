"""An alert that was never sent, because its worker died, is sent by the next check."""

import asyncio
import time
from typing import Any

import pytest

from tests.engine.rig import Play, Rig, made, request
from tests.engine.test_alert_watch import no_answer
from tidegate.core.answers import Alarm
from tidegate.core.flow import Verb
from tidegate.core.kind import Transfer
from tidegate.engine.alert_watch import AlertThresholds, AlertWatch
from tidegate.engine.alerts import Alert, AlertCode, open_question_cause
from tidegate.flows import FLOWS
from tidegate.service.pager import Pager
from tidegate.serving import tuned
from tidegate.store.postgres import PostgresStore
from tidegate.store.sent_pages import mark_sent

pytestmark = pytest.mark.slow

NO_DELAY = AlertThresholds(unsent_s=0.0)


def leader(rig: Rig) -> tuple[AlertWatch, list[Alert]]:
    """A process that has just started to watch."""
    assert isinstance(rig.store, PostgresStore)
    alerts: list[Alert] = []
    return AlertWatch(rig.store, rig.flows, alerts.append, NO_DELAY), alerts


async def paged(rig: Rig, count: int) -> list[Transfer]:
    """Transfers about which a worker raised an alert, and died before it was sent."""
    rig.flows = {name: tuned(flow, 0.02, 1, 86_400.0) for name, flow in FLOWS.items()}
    rig.outside.twist = no_answer
    async with rig.engine(9) as engine:
        transfers = await asyncio.gather(*(made(engine, request("out", 1)) for _ in range(count)))
        until_s = time.monotonic() + 20
        while not all(t.paged for t in await rig.store.find([t.id for t in transfers])):
            assert time.monotonic() < until_s, "no alert was raised"
            await asyncio.sleep(0.02)
    return list(transfers)


async def count(rig: Rig, table: str) -> Any:
    assert isinstance(rig.store, PostgresStore)
    return (await rig.store.run(f"SELECT count(*) FROM {table}", {}))[0][0]


def test_an_alert_that_was_lost_with_its_worker_is_sent_by_the_next_check(
    play_postgres: Play,
) -> None:
    async def scene(rig: Rig) -> None:
        [transfer] = await paged(rig, 1)
        watch, alerts = leader(rig)
        for _ in range(3):
            await watch.check()
        [alert] = alerts
        assert (alert.alarm, alert.code, alert.cause) == (
            Alarm.PAGE,
            AlertCode.TRANSFER_STUCK,
            open_question_cause("venue", Verb.DEBIT, alert.retries or 0, "no answer"),
        )
        assert (alert.transfer_id, alert.lane, alert.state) == (
            transfer.id,
            "venue",
            "SOURCE_PENDING",
        )
        assert alert.retries is not None
        assert alert.retries > 0
        another, resent = leader(rig)
        await another.check()
        assert [a.transfer_id for a in resent] == [transfer.id], (
            "the first watcher did not mark it as sent"
        )

    play_postgres(scene)


def test_a_posted_alert_is_not_sent_again_by_another_leader(play_postgres: Play) -> None:
    async def scene(rig: Rig) -> None:
        assert isinstance(rig.store, PostgresStore)
        store = rig.store
        [transfer] = await paged(rig, 1)
        posted: list[bytes] = []
        answers = [False, True]

        async def post(body: bytes) -> bool:
            posted.append(body)
            return answers.pop(0)

        pager = Pager(post)
        pager.mark = lambda ids: mark_sent(store, ids)
        [page] = [a for a in rig.alerts if a.transfer_id == transfer.id and a.notifies_people]
        pager.notify(page)
        assert await count(rig, "told_pages") == 0, "not posted yet"
        await pager.deliver()
        assert len(posted) == 2, "the webhook refused the first try"
        watch, alerts = leader(rig)
        await watch.check()
        assert alerts == []
        rig.outside.twist = None
        async with rig.engine(1):
            await rig.ended([transfer])
        await watch.check()
        assert alerts == []
        assert await count(rig, "told_pages") == 0, "the mark of an ended transfer is deleted"

    play_postgres(scene)


def test_many_lost_alerts_of_a_lane_become_one_alert_with_a_count(play_postgres: Play) -> None:
    async def scene(rig: Rig) -> None:
        assert isinstance(rig.store, PostgresStore)
        transfers = await paged(rig, 30)
        watch, alerts = leader(rig)
        for _ in range(3):
            await watch.check()
        [alert] = alerts
        assert alert.count == 30
        assert {alert.transfer_id, *alert.also} == {transfer.id for transfer in transfers}
        await mark_sent(rig.store, [transfers[0].id, *alert.also])
        another, resent = leader(rig)
        await another.check()
        assert resent == []

    play_postgres(scene)


def test_a_worker_has_some_time_to_send_its_alert_itself(play_postgres: Play) -> None:
    async def scene(rig: Rig) -> None:
        assert isinstance(rig.store, PostgresStore)
        await paged(rig, 1)
        alerts: list[Alert] = []
        watch = AlertWatch(rig.store, rig.flows, alerts.append, AlertThresholds(unsent_s=0.5))
        await watch.check()
        assert alerts == []
        await asyncio.sleep(0.6)
        await watch.check()
        assert len(alerts) == 1

    play_postgres(scene)


def test_without_a_webhook_the_alert_is_marked_as_sent(play_postgres: Play) -> None:
    async def scene(rig: Rig) -> None:
        assert isinstance(rig.store, PostgresStore)
        store = rig.store
        [transfer] = await paged(rig, 1)
        pager = Pager(None)
        pager.mark = lambda ids: mark_sent(store, ids)
        for alert in rig.alerts:
            pager.notify(alert)
        await pager.deliver()
        watch, alerts = leader(rig)
        await watch.check()
        assert alerts == [], transfer.id

    play_postgres(scene)
