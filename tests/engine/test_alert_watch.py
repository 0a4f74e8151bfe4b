"""The alert rules: each sends one alert at its threshold, and one when the problem is over."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

import psycopg
import pytest

from tests.conftest import SCHEMA
from tests.engine.rig import OWNER, Execute, Play, Rig, made, request
from tidegate.core.answers import Alarm, Answer, Rejected, Unknown
from tidegate.core.transfer import Question
from tidegate.engine.alert_reporter import AlertReporter, Condition
from tidegate.engine.alert_watch import AlertThresholds, AlertWatch, conditions
from tidegate.engine.alerts import Alert, AlertCode
from tidegate.flows import FLOWS
from tidegate.store import operator_reads
from tidegate.store.audit_reads import AlertSign
from tidegate.store.postgres import PostgresStore
from tidegate.systems.ledger import LedgerStatus

pytestmark = pytest.mark.slow

DEFAULTS = AlertThresholds()


def watch_alerts(rig: Rig, limits: AlertThresholds = DEFAULTS) -> tuple[AlertWatch, list[Alert]]:
    assert isinstance(rig.store, PostgresStore)
    alerts: list[Alert] = []
    return AlertWatch(rig.store, rig.flows, alerts.append, limits), alerts


async def make_old(database: str, seconds: int) -> None:
    """Move the times of all open transfers back by this many seconds."""
    # In a thread, because it may wait for a row that the engine has locked.
    await asyncio.to_thread(_make_old, database, seconds)


def _make_old(database: str, seconds: int) -> None:
    ago = "now() - %s * interval '1 second'"
    with psycopg.connect(database, options=f"-c search_path={SCHEMA}") as connection:
        connection.execute(
            f"UPDATE transfers SET created_at = {ago}, updated_at = {ago} WHERE lane IS NOT NULL",
            (seconds, seconds),
        )


async def no_answer(questions: Sequence[Question], execute: Execute) -> Sequence[Answer]:
    return [Unknown("no answer")] * len(questions)


def test_mon_001_over_a_minute_in_target_pending_sends_one_critical_alert(
    play_postgres: Play, database: str
) -> None:
    async def scene(rig: Rig) -> None:
        watch, alerts = watch_alerts(rig)
        rig.outside.twist = no_answer
        async with rig.engine() as engine:
            transfer = await made(engine, request("in", 5))
            await make_old(database, 59)
            await watch.check()
            assert alerts == []
            await make_old(database, 61)
            for _ in range(3):
                await watch.check()
            [alert] = alerts
            assert alert.alarm is Alarm.CRITICAL
            assert alert.cause == (
                "MON-001: 1 transfer has been in TARGET_PENDING for more than 60 s;"
                " the money has not reached the target"
            )
            assert (alert.lane, alert.transfer_id) == ("venue", transfer.id)
            assert watch.reporter.firing == [alert.cause]
            rig.outside.twist = None
            await rig.ended([transfer])
        await watch.check()
        assert [a.alarm for a in alerts] == [Alarm.CRITICAL, Alarm.NONE]
        assert alerts[-1].cause == f"cleared: {alert.cause}"
        assert watch.reporter.firing == []

    play_postgres(scene)


@pytest.mark.parametrize("failure", ["refused", "silent"])
def test_mon_002_a_refund_that_failed_three_times_is_critical(
    play_postgres: Play, failure: str
) -> None:
    async def scene(rig: Rig) -> None:
        watch, alerts = watch_alerts(rig, AlertThresholds(refund_failures=2))
        await rig.set_status(LedgerStatus.DISABLED)  # The target of the way out.

        async def refuse_refunds(
            questions: Sequence[Question], execute: Execute
        ) -> Sequence[Answer]:
            if questions[0].verb == "refund":
                if failure == "refused":
                    return [Rejected("NOT_TODAY")] * len(questions)
                return [Unknown("no answer")] * len(questions)
            return execute()

        rig.outside.twist = refuse_refunds
        async with rig.engine() as engine:
            transfer = await made(engine, request("out", 5))
            await _until(lambda: _failures(rig, 1))
            await watch.check()
            assert alerts == []
            await _until(lambda: _failures(rig, 2))
            await watch.check()
            await watch.check()
        [alert] = alerts
        assert alert.alarm is Alarm.CRITICAL
        assert alert.cause == "MON-002: a refund has failed 2 times"
        assert (alert.transfer_id, alert.state) == (transfer.id, "COMPENSATING")

    play_postgres(scene)
    assert AlertThresholds().refund_failures == 3


def test_no_alert_about_a_failing_refund_is_cleared_while_it_still_fails(
    play_postgres: Play, database: str
) -> None:
    """Only some are reported at once. Which ones must not change with the retries."""

    async def scene(rig: Rig) -> None:
        watch, alerts = watch_alerts(rig, AlertThresholds(refund_failures=1))
        await rig.set_status(LedgerStatus.DISABLED)  # The target of the way out.

        async def refuse_refunds(
            questions: Sequence[Question], execute: Execute
        ) -> Sequence[Answer]:
            refunds = questions[0].verb == "refund"
            return [Rejected("NOT_TODAY")] * len(questions) if refunds else execute()

        rig.outside.twist = refuse_refunds
        async with rig.engine() as engine:
            for _ in range(30):
                await made(engine, request("out", 5))
            await _until(lambda: _failures(rig, 30))
        with psycopg.connect(database, options=f"-c search_path={SCHEMA}") as connection:
            for later in ("row_number() OVER (ORDER BY id)", "-row_number() OVER (ORDER BY id)"):
                connection.execute(
                    "UPDATE transfers AS t SET due_at = now() + s.later * interval '1 second'"
                    f" FROM (SELECT id, {later} AS later FROM transfers) AS s"
                    " WHERE s.id = t.id AND t.lane IS NOT NULL"
                )
                connection.commit()
                await watch.check()
        assert {alert.code for alert in alerts} == {AlertCode.REFUND_FAILING}
        assert [alert for alert in alerts if alert.cleared] == []

    play_postgres(scene)


async def _failures(rig: Rig, count: int) -> bool:
    assert isinstance(rig.store, PostgresStore)
    [(found,)] = await rig.store.run("SELECT count(*) FROM attempts", {})
    return bool(found >= count)


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    for _ in range(1_000):
        if await condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the condition did not become true")


def test_mon_004_more_than_thirty_transfers_of_one_owner_in_a_minute(play_postgres: Play) -> None:
    async def scene(rig: Rig) -> None:
        watch, alerts = watch_alerts(rig)
        async with rig.engine() as engine:
            # The earlier deposit was made by an operator and does not count.
            transfers = [await made(engine, request("in", 1)) for _ in range(30)]
            await watch.check()
            assert alerts == []
            transfers.append(await made(engine, request("in", 1)))
            await watch.check()
            await watch.check()
            await rig.ended(transfers)
        [alert] = alerts
        assert alert.alarm is Alarm.PAGE
        assert alert.cause == f"MON-004: owner {OWNER} created 31 transfers in 60 s"

    play_postgres(scene)


def test_more_than_ten_pending_for_over_five_minutes(play_postgres: Play, database: str) -> None:
    async def scene(rig: Rig) -> None:
        watch, alerts = watch_alerts(rig, AlertThresholds(stuck_s=10_000))
        rig.outside.twist = no_answer
        async with rig.engine() as engine:
            for _ in range(10):
                await made(engine, request("in", 1))
            await make_old(database, 301)
            await watch.check()
            assert alerts == []
            last = await made(engine, request("in", 1))
            await make_old(database, 301)
            await watch.check()
            await watch.check()
            assert [a.cause for a in alerts] == ["11 transfers have been open for more than 300 s"]
            rig.outside.twist = None
            await rig.ended([last])
            await _until(lambda: _all_ended(rig))
        await watch.check()
        assert alerts[-1].cause == "cleared: 11 transfers have been open for more than 300 s"

    play_postgres(scene)


def test_a_transfer_that_waits_by_design_is_neither_stuck_nor_pending(
    play_postgres: Play, database: str
) -> None:
    async def scene(rig: Rig) -> None:
        assert isinstance(rig.store, PostgresStore)
        watch, alerts = watch_alerts(rig, AlertThresholds(stuck_s=10_000))
        rig.outside.twist = no_answer
        async with rig.engine() as engine:
            for _ in range(11):
                await made(engine, request("in", 1))
        await make_old(database, 301)
        query = (rig.store, FLOWS.values(), 300, operator_reads.NEWEST, 100)
        assert len(await operator_reads.stuck(*query)) == 11
        checking = "UPDATE transfers SET flow = 'pool_transfer', state = %s WHERE lane IS NOT NULL"
        with psycopg.connect(database, options=f"-c search_path={SCHEMA}") as connection:
            connection.execute(checking, ("CHECKING",))
        assert await operator_reads.stuck(*query) == [], "CHECKING may take days"
        await watch.check()
        assert alerts == []
        with psycopg.connect(database, options=f"-c search_path={SCHEMA}") as connection:
            connection.execute(checking, ("CREDITING",))
        assert len(await operator_reads.stuck(*query)) == 11, "approved but not credited"
        await watch.check()
        assert [alert.code for alert in alerts] == [AlertCode.TRANSFERS_PENDING]

    play_postgres(scene)


def test_requests_that_wait_in_the_inbox_cause_an_alert(play_postgres: Play, database: str) -> None:
    """A program requests a flow, and no process that has the flow is running."""
    insert = (
        "INSERT INTO inbox (id, owner, flow, asset_id, amount, terms, space, requested_at, error)"
        " SELECT gen_random_uuid(), 7, 'deposit', 1, 1, '{}', '', now() - %s * interval '1 second',"
        " %s FROM generate_series(1, 3)"
    )

    async def scene(rig: Rig) -> None:
        watch, alerts = watch_alerts(rig)
        with psycopg.connect(database, options=f"-c search_path={SCHEMA}") as connection:
            connection.execute(insert, (299, None))
            connection.commit()
            await watch.check()
            assert alerts == []
            connection.execute(insert, (301, None))
            connection.commit()
            halt = await rig.store.halt("a test", "test")
            await watch.check()
            assert alerts == [], "requests wait during a halt"
            await rig.store.resume("a test", "test", [halt])
            await watch.check()
            await watch.check()
            [alert] = alerts
            assert (alert.code, alert.alarm) == (AlertCode.REQUESTS_WAITING, Alarm.PAGE)
            assert alert.cause == (
                "3 inbox requests of flow deposit have waited for more than 300 s:"
                " no process has claimed them"
            )
            connection.execute("UPDATE inbox SET outcome = 'created', decided_at = now()")
        await watch.check()
        assert [a.cleared for a in alerts] == [False, True]

    play_postgres(scene)


def test_a_full_audit_that_takes_too_long_causes_an_alert(
    play_postgres: Play, database: str
) -> None:
    async def scene(rig: Rig) -> None:
        watch, alerts = watch_alerts(rig)
        with psycopg.connect(database, options=f"-c search_path={SCHEMA}") as connection:
            verified = "UPDATE audit_sweep SET verified_at = now() - %s * interval '1 hour'"
            for hours, codes in ((47, []), (49, [AlertCode.AUDIT_LATE])):
                connection.execute(verified, (hours,))
                connection.commit()
                await watch.check()
                assert [alert.code for alert in alerts] == codes
            connection.execute(verified, (1,))
        await watch.check()
        assert alerts[-1].cause == "cleared: the last complete audit is more than 48 hours old"

    play_postgres(scene)


async def _all_ended(rig: Rig) -> bool:
    assert isinstance(rig.store, PostgresStore)
    statement = "SELECT count(*) FROM transfers WHERE lane IS NOT NULL"
    [(found,)] = await rig.store.run(statement, {})
    return bool(found == 0)


def test_a_cleared_alert_that_returns_is_sent_again() -> None:
    alerts: list[Alert] = []
    reporter = AlertReporter(alerts.append)
    condition = {("owner", "7"): Condition(Alert(Alarm.PAGE, AlertCode.OWNER_BUSY, "too many"))}
    for second, found in enumerate((condition, condition, {}, {}, condition)):
        reporter.judge(found, second)
    assert [a.cause for a in alerts] == ["too many", "cleared: too many", "too many"]


def test_an_alert_is_sent_again_when_its_count_has_doubled() -> None:
    alerts: list[Alert] = []
    reporter = AlertReporter(alerts.append)
    for second, count in enumerate((1, 1, 2, 3, 4, 7, 8, 9)):
        stuck = AlertSign(
            "stuck", "core", UUID(int=5), "TARGET_PENDING", count, 0, 2, 61.0 + second
        )
        reporter.judge(conditions([stuck], AlertThresholds()), second)
    assert [alert.count for alert in alerts] == [1, 2, 4, 8]
    assert {alert.code for alert in alerts} == {AlertCode.TARGET_PENDING}
    assert (alerts[0].transfer_id, alerts[0].retries, alerts[0].age_s) == (UUID(int=5), 2, 61.0)
    reporter.judge({}, 9)
    assert alerts[-1].cleared
    assert alerts[-1].code is AlertCode.TARGET_PENDING
