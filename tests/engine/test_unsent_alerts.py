"""An alert that was decided and never sent, because its worker died, is sent by the next check."""

import asyncio
import time
from typing import Any

import pytest

from tests.engine.rig import Play, Rig, made, request
from tests.engine.test_alert_watch import silence
from tidegate.core.answers import Alarm
from tidegate.core.kind import Transfer
from tidegate.engine.alert_watch import AlertThresholds, AlertWatch
from tidegate.engine.alerts import Alert, AlertCode
from tidegate.flows import FLOWS
from tidegate.service.pager import Pager
from tidegate.serving import tuned
from tidegate.store.postgres import PostgresStore
from tidegate.store.sent_pages import mark_sent

pytestmark = pytest.mark.slow

AT_ONCE = AlertThresholds(untold_s=0.0)


def leader(rig: Rig) -> tuple[AlertWatch, list[Alert]]:
    """A process that begins to watch now."""
    assert isinstance(rig.store, PostgresStore)
    told: list[Alert] = []
    return AlertWatch(rig.store, rig.flows, told.append, AT_ONCE), told


async def paged(rig: Rig, count: int) -> list[Transfer]:
    """Transfers about which their worker wanted to call somebody, and died."""
    rig.flows = {name: tuned(flow, 0.02, 1, 86_400.0) for name, flow in FLOWS.items()}
    rig.outside.twist = silence
    async with rig.engine(9) as engine:
        transfers = await asyncio.gather(*(made(engine, request("out", 1)) for _ in range(count)))
        until_s = time.monotonic() + 20
        while not all(t.paged for t in await rig.store.find([t.id for t in transfers])):
            assert time.monotonic() < until_s, "nobody is called"
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
        watch, told = leader(rig)
        for _ in range(3):
            await watch.look()
        [alert] = told
        assert (alert.alarm, alert.code, alert.cause) == (
            Alarm.PAGE,
            AlertCode.TRANSFER_STUCK,
            "nobody answers",
        )
        assert (alert.transfer_id, alert.lane, alert.state) == (
            transfer.id,
            "venue",
            "SOURCE_PENDING",
        )
        assert alert.retries is not None
        assert alert.retries > 0
        another, again = leader(rig)
        await another.look()
        assert [a.transfer_id for a in again] == [transfer.id], "the first has died as well"

    play_postgres(scene)


def test_what_was_posted_is_not_told_a_second_time_whoever_leads(play_postgres: Play) -> None:
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
        [page] = [a for a in rig.alerts if a.transfer_id == transfer.id and a.is_news]
        pager.notify(page)
        assert await count(rig, "told_pages") == 0, "it has not been posted yet"
        await pager.deliver()
        assert len(posted) == 2, "the first try was not taken"
        watch, told = leader(rig)
        await watch.look()
        assert told == []
        rig.outside.twist = None
        async with rig.engine(1):
            await rig.ended([transfer])
        await watch.look()
        assert told == []
        assert await count(rig, "told_pages") == 0, "what is over is forgotten"

    play_postgres(scene)


def test_many_lost_alerts_of_a_lane_are_one_alert_that_counts_them(play_postgres: Play) -> None:
    async def scene(rig: Rig) -> None:
        assert isinstance(rig.store, PostgresStore)
        transfers = await paged(rig, 30)
        watch, told = leader(rig)
        for _ in range(3):
            await watch.look()
        [alert] = told
        assert alert.count == 30
        assert {alert.transfer_id, *alert.also} == {transfer.id for transfer in transfers}
        await mark_sent(rig.store, [transfers[0].id, *alert.also])
        another, again = leader(rig)
        await another.look()
        assert again == []

    play_postgres(scene)


def test_a_worker_has_a_moment_to_say_it_itself(play_postgres: Play) -> None:
    async def scene(rig: Rig) -> None:
        assert isinstance(rig.store, PostgresStore)
        await paged(rig, 1)
        told: list[Alert] = []
        watch = AlertWatch(rig.store, rig.flows, told.append, AlertThresholds(untold_s=0.5))
        await watch.look()
        assert told == []
        await asyncio.sleep(0.6)
        await watch.look()
        assert len(told) == 1

    play_postgres(scene)


def test_without_a_webhook_the_log_has_it_and_it_is_marked(play_postgres: Play) -> None:
    async def scene(rig: Rig) -> None:
        assert isinstance(rig.store, PostgresStore)
        store = rig.store
        [transfer] = await paged(rig, 1)
        pager = Pager(None)
        pager.mark = lambda ids: mark_sent(store, ids)
        for alert in rig.alerts:
            pager.notify(alert)
        await pager.deliver()
        watch, told = leader(rig)
        await watch.look()
        assert told == [], transfer.id

    play_postgres(scene)
