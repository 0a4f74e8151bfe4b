"""A long outage of a system: counted per lane, reported by alerts, and cheap."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from tests.engine.rig import Execute, Play, Rig, made, request
from tests.engine.test_alert_watch import watch_alerts
from tidegate.core.answers import Alarm, Answer, Unreachable
from tidegate.core.flow import Verb
from tidegate.core.transfer import Question
from tidegate.engine import lane
from tidegate.engine.alert_watch import AlertThresholds, AlertWatch
from tidegate.engine.alerts import Alert, AlertCode
from tidegate.flows import FLOWS
from tidegate.serving import tuned
from tidegate.store.postgres import PostgresStore
from tidegate.systems.ledger import LedgerStatus

pytestmark = pytest.mark.slow

REASON = "connection refused"


@pytest.fixture(autouse=True)
def _quick_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "PROBE_FIRST_S", 0.02)
    monkeypatch.setattr(lane, "PROBE_CAP_S", 0.1)


async def down(questions: Sequence[Question], execute: Execute) -> Sequence[Answer]:
    raise Unreachable(REASON)


async def refunds_are_down(questions: Sequence[Question], execute: Execute) -> Sequence[Answer]:
    if questions[0].verb is Verb.REFUND:
        raise Unreachable(REASON)
    return execute()


async def until(holds: Callable[[], Awaitable[object]]) -> None:
    until_s = time.monotonic() + 20
    while not await holds():
        assert time.monotonic() < until_s, "the condition did not become true"
        await asyncio.sleep(0.02)


async def rows(rig: Rig, statement: str) -> list[Any]:
    assert isinstance(rig.store, PostgresStore)
    return await rig.store.run(statement, {})


async def probed(rig: Rig, count: int) -> bool:
    return any(outage.attempts >= count for outage in await rig.store.outages())


async def answered(rig: Rig) -> bool:
    return not await rig.store.outages()


async def was_sent(watch: AlertWatch, alerts: list[Alert], code: AlertCode) -> bool:
    await watch.check()
    return any(alert.code is code for alert in alerts)


def test_mon_002_a_refund_on_a_dead_system_is_critical(play_postgres: Play) -> None:
    async def scene(rig: Rig) -> None:
        watch, alerts = watch_alerts(rig)
        await rig.set_status(LedgerStatus.DISABLED)
        rig.outside.twist = refunds_are_down
        async with rig.engine() as engine:
            transfer = await made(engine, request("out", 5))
            await until(lambda: was_sent(watch, alerts, AlertCode.REFUND_FAILING))
            [alert] = [a for a in alerts if a.code is AlertCode.REFUND_FAILING]
            assert (alert.alarm, alert.state) == (Alarm.CRITICAL, "COMPENSATING")
            assert (alert.transfer_id, alert.lane, alert.count) == (transfer.id, "venue", 1)
            assert alert.retries is not None
            assert alert.retries >= AlertThresholds().refund_failures
            assert alert.cause.endswith(f"unreachable: {REASON}")
            rig.outside.twist = None
            [ended] = await rig.ended([transfer])
        assert ended.state == "ROLLED_BACK"
        await watch.check()
        assert [a.code for a in alerts if a.cleared] == [AlertCode.REFUND_FAILING]
        assert ended.retries == 0, "an outage does not count as a retry"

    play_postgres(scene)


def test_alert_after_attempts_and_alert_after_s_apply_to_waits_for_a_dead_system(
    play_postgres: Play,
) -> None:
    async def scene(rig: Rig) -> None:
        often = {name: tuned(flow, 1.0, 4, 86_400.0) for name, flow in FLOWS.items()}
        late = {name: tuned(flow, 1.0, 1_000_000, 0.5) for name, flow in FLOWS.items()}
        never = {name: tuned(flow, 1.0, 1_000_000, 86_400.0) for name, flow in FLOWS.items()}
        sent = []
        rig.outside.twist = down
        async with rig.engine() as engine:
            transfer = await made(engine, request("out", 5))
            await until(lambda: probed(rig, 4))
            await asyncio.sleep(0.5)
            assert isinstance(rig.store, PostgresStore)
            for flows in (often, late, never):
                alerts: list[Alert] = []
                await AlertWatch(rig.store, flows, alerts.append).check()
                sent.append([(a.code, a.alarm, a.transfer_id) for a in alerts])
        stuck = (AlertCode.TRANSFER_STUCK, Alarm.PAGE, transfer.id)
        assert sent == [[stuck], [stuck], []]

    play_postgres(scene)


def test_a_client_that_raises_does_not_end_an_outage(play_postgres: Play) -> None:
    """An exception is no answer: the count, the reason and the alert of the outage remain."""
    calls = 0

    async def down_or_broken(questions: Sequence[Question], execute: Execute) -> Sequence[Answer]:
        nonlocal calls
        calls += 1
        if calls % 3 == 0:
            raise ValueError("the client has a bug")
        raise Unreachable(REASON)

    async def scene(rig: Rig) -> None:
        rig.outside.twist = down_or_broken
        async with rig.engine() as engine:
            for _ in range(5):
                await made(engine, request("in", 1))
            await until(lambda: probed(rig, 6))
            lane = [a for a in rig.alerts if a.code is AlertCode.LANE_UNREACHABLE]
            assert [(a.alarm, a.cleared) for a in lane] == [(Alarm.PAGE, False)]
            rig.outside.twist = None
            await until(lambda: answered(rig))
        cleared = [a.cleared for a in rig.alerts if a.code is AlertCode.LANE_UNREACHABLE]
        assert cleared == [False, True]

    play_postgres(scene)


def test_a_long_outage_writes_one_small_row_and_none_per_transfer(play_postgres: Play) -> None:
    async def scene(rig: Rig) -> None:
        rig.outside.twist = down
        async with rig.engine() as engine:
            wanted = [made(engine, request("in", 1)) for _ in range(50)]
            transfers = await asyncio.gather(*wanted)
            await until(lambda: probed(rig, 5))
            before = dict(await rows(rig, "SELECT id, xmin::text FROM transfers"))
            first = (await rig.store.outages())[0].attempts
            await until(lambda: probed(rig, first + 10))
            after = dict(await rows(rig, "SELECT id, xmin::text FROM transfers"))
            last = (await rig.store.outages())[0].attempts
            changed = sum(before[id_] != xmin for id_, xmin in after.items())
            assert changed <= last - first + 1, "each probe writes one row only"
            assert await rows(rig, "SELECT count(*) FROM lane_troubles") == [(1,)]
            assert await rows(rig, "SELECT count(*) FROM attempts") == [(0,)]
            rig.outside.twist = None
            ended = await rig.ended(transfers)
        assert all(t.retries == 0 for t in ended)
        assert await rows(rig, "SELECT count(*) FROM lane_troubles") == [(0,)]

    play_postgres(scene)


def test_probes_take_turns_among_the_waiting_transfers(play_postgres: Play) -> None:
    async def scene(rig: Rig) -> None:
        rig.outside.twist = down
        async with rig.engine() as engine:
            await asyncio.gather(*(made(engine, request("in", 1)) for _ in range(4)))
            await until(lambda: probed(rig, 14))
        counts = [
            n
            for (n,) in await rows(rig, "SELECT attempts FROM transfers WHERE state LIKE 'TARGET%'")
        ]
        assert max(counts) - min(counts) <= 2, counts

    play_postgres(scene)


def test_an_outage_is_kept_while_two_processes_probe_one_transfer(play_postgres: Play) -> None:
    """While one process probes the only row, the other finds no row. That is no answer."""

    async def scene(rig: Rig) -> None:
        rig.outside.twist = down
        async with rig.engine(1) as one, rig.engine(2):
            transfer = await made(one, request("in", 1))
            await until(lambda: probed(rig, 12))
            rig.outside.twist = None
            await rig.ended([transfer])
        pages = [a for a in rig.alerts if a.alarm > Alarm.NONE]
        assert len(pages) <= 2, "one per process"
        assert {a.code for a in pages} == {AlertCode.LANE_UNREACHABLE}

    play_postgres(scene)


def test_the_views_show_the_reason_and_the_number_of_probes(play_postgres: Play) -> None:
    async def scene(rig: Rig) -> None:
        view = "SELECT error_message, retry_count FROM transfers_tb"
        first = "SELECT error, retry_count FROM trading.transfers"
        rig.outside.twist = down
        async with rig.engine() as engine:
            early = await made(engine, request("in", 1))
            await until(lambda: probed(rig, 5))
            late = await made(engine, request("in", 1))
            for statement in (view, first):
                id_ = "transfer_id" if statement is view else "ulid(req_id)"
                shown = await rows(rig, f"{statement} ORDER BY {id_}")
                assert {reason for reason, _ in shown} == {f"unreachable: {REASON}"}
                (_, early_probes), (_, late_probes) = shown
                assert early_probes >= 5
                assert late_probes < early_probes, "only probes since its creation count"
            rig.outside.twist = None
            await rig.ended([early, late])
        assert await rows(rig, view) == [(None, 0), (None, 0)]
        assert await rows(rig, first) == [(None, 0), (None, 0)]

    play_postgres(scene)


def test_an_outage_reported_by_a_dead_process_expires(play_postgres: Play) -> None:
    async def scene(rig: Rig) -> None:
        await rig.store.note_outage("venue", "dead", 50, REASON)
        [outage] = await rig.store.outages()
        assert outage.attempts == 50
        for shift in ("- interval '3 minutes'", "+ interval '1 hour'"):
            assert isinstance(rig.store, PostgresStore)
            await rig.store.run(f"UPDATE lane_troubles SET updated_at = now() {shift}", {})
            assert await rig.store.outages() == [], shift

    play_postgres(scene)
