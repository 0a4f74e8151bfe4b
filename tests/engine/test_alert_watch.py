"""The alert rules: each fires at its threshold, once, and says when it is over."""

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

QUIET = AlertThresholds()


def watching(rig: Rig, limits: AlertThresholds = QUIET) -> tuple[AlertWatch, list[Alert]]:
    assert isinstance(rig.store, PostgresStore)
    told: list[Alert] = []
    return AlertWatch(rig.store, rig.flows, told.append, limits), told


async def made_old(database: str, seconds: int) -> None:
    """Let everything that is open have happened so long ago."""
    # In a thread: it may have to wait for a row that the engine holds.
    await asyncio.to_thread(_made_old, database, seconds)


def _made_old(database: str, seconds: int) -> None:
    ago = "now() - %s * interval '1 second'"
    with psycopg.connect(database, options=f"-c search_path={SCHEMA}") as connection:
        connection.execute(
            f"UPDATE transfers SET created_at = {ago}, updated_at = {ago} WHERE lane IS NOT NULL",
            (seconds, seconds),
        )


async def silence(questions: Sequence[Question], execute: Execute) -> Sequence[Answer]:
    return [Unknown("nobody answers")] * len(questions)


def test_mon_001_a_target_pending_for_over_a_minute_is_critical_once(
    play_postgres: Play, database: str
) -> None:
    async def scene(rig: Rig) -> None:
        watch, told = watching(rig)
        rig.outside.twist = silence
        async with rig.engine() as engine:
            transfer = await made(engine, request("in", 5))
            await made_old(database, 59)
            await watch.look()
            assert told == []
            await made_old(database, 61)
            for _ in range(3):
                await watch.look()
            [alert] = told
            assert alert.alarm is Alarm.CRITICAL
            assert alert.cause == "MON-001: 1 in TARGET_PENDING for over 60 s"
            assert (alert.lane, alert.transfer_id) == ("venue", transfer.id)
            assert watch.reporter.firing == [alert.cause]
            rig.outside.twist = None
            await rig.ended([transfer])
        await watch.look()
        assert [a.alarm for a in told] == [Alarm.CRITICAL, Alarm.NONE]
        assert told[-1].cause == f"cleared: {alert.cause}"
        assert watch.reporter.firing == []

    play_postgres(scene)


@pytest.mark.parametrize("failure", ["refused", "silent"])
def test_mon_002_a_refund_that_failed_three_times_is_critical(
    play_postgres: Play, failure: str
) -> None:
    async def scene(rig: Rig) -> None:
        watch, told = watching(rig, AlertThresholds(refund_failures=2))
        await rig.set_status(LedgerStatus.DISABLED)  # The target of the way out.

        async def no_refunds(questions: Sequence[Question], execute: Execute) -> Sequence[Answer]:
            if questions[0].verb == "refund":
                if failure == "refused":
                    return [Rejected("NOT_TODAY")] * len(questions)
                return [Unknown("nobody answers")] * len(questions)
            return execute()

        rig.outside.twist = no_refunds
        async with rig.engine() as engine:
            transfer = await made(engine, request("out", 5))
            await _until(lambda: _failures(rig, 1))
            await watch.look()
            assert told == []
            await _until(lambda: _failures(rig, 2))
            await watch.look()
            await watch.look()
        [alert] = told
        assert alert.alarm is Alarm.CRITICAL
        assert alert.cause == "MON-002: a refund has failed 2 times"
        assert (alert.transfer_id, alert.state) == (transfer.id, "COMPENSATING")

    play_postgres(scene)
    assert AlertThresholds().refund_failures == 3


def test_of_many_failing_refunds_none_is_called_over_while_it_fails(
    play_postgres: Play, database: str
) -> None:
    """Some are told, the others wait their turn; which ones must not change with the retries."""

    async def scene(rig: Rig) -> None:
        watch, told = watching(rig, AlertThresholds(refund_failures=1))
        await rig.set_status(LedgerStatus.DISABLED)  # The target of the way out.

        async def no_refunds(questions: Sequence[Question], execute: Execute) -> Sequence[Answer]:
            refunds = questions[0].verb == "refund"
            return [Rejected("NOT_TODAY")] * len(questions) if refunds else execute()

        rig.outside.twist = no_refunds
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
                await watch.look()
        assert {alert.code for alert in told} == {AlertCode.REFUND_FAILING}
        assert [alert for alert in told if alert.cleared] == []

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
    raise AssertionError("it did not come about")


def test_mon_004_more_than_thirty_transfers_of_one_owner_in_a_minute(play_postgres: Play) -> None:
    async def scene(rig: Rig) -> None:
        watch, told = watching(rig)
        async with rig.engine() as engine:
            # The deposit that was made before is an operator's, and does not count.
            transfers = [await made(engine, request("in", 1)) for _ in range(30)]
            await watch.look()
            assert told == []
            transfers.append(await made(engine, request("in", 1)))
            await watch.look()
            await watch.look()
            await rig.ended(transfers)
        [alert] = told
        assert alert.alarm is Alarm.PAGE
        assert alert.cause == f"MON-004: owner {OWNER} made 31 transfers in a minute"

    play_postgres(scene)


def test_more_than_ten_pending_for_over_five_minutes(play_postgres: Play, database: str) -> None:
    async def scene(rig: Rig) -> None:
        watch, told = watching(rig, AlertThresholds(stuck_s=10_000))
        rig.outside.twist = silence
        async with rig.engine() as engine:
            for _ in range(10):
                await made(engine, request("in", 1))
            await made_old(database, 301)
            await watch.look()
            assert told == []
            last = await made(engine, request("in", 1))
            await made_old(database, 301)
            await watch.look()
            await watch.look()
            assert [a.cause for a in told] == ["11 transfers are pending for over 300 s"]
            rig.outside.twist = None
            await rig.ended([last])
            await _until(lambda: _all_ended(rig))
        await watch.look()
        assert told[-1].cause == "cleared: 11 transfers are pending for over 300 s"

    play_postgres(scene)


def test_what_waits_by_design_is_neither_stuck_nor_pending(
    play_postgres: Play, database: str
) -> None:
    async def scene(rig: Rig) -> None:
        assert isinstance(rig.store, PostgresStore)
        watch, told = watching(rig, AlertThresholds(stuck_s=10_000))
        rig.outside.twist = silence
        async with rig.engine() as engine:
            for _ in range(11):
                await made(engine, request("in", 1))
        await made_old(database, 301)
        everyone = (rig.store, FLOWS.values(), 300, operator_reads.NEWEST, 100)
        assert len(await operator_reads.stuck(*everyone)) == 11
        checking = "UPDATE transfers SET flow = 'pool_transfer', state = %s WHERE lane IS NOT NULL"
        with psycopg.connect(database, options=f"-c search_path={SCHEMA}") as connection:
            connection.execute(checking, ("CHECKING",))
        assert await operator_reads.stuck(*everyone) == [], "for days, if it must"
        await watch.look()
        assert told == []
        with psycopg.connect(database, options=f"-c search_path={SCHEMA}") as connection:
            connection.execute(checking, ("CREDITING",))
        assert len(await operator_reads.stuck(*everyone)) == 11, "approved, and not paid"
        await watch.look()
        assert [alert.code for alert in told] == [AlertCode.TRANSFERS_PENDING]

    play_postgres(scene)


def test_requests_that_wait_in_the_inbox_are_told(play_postgres: Play, database: str) -> None:
    """Somebody asks for a flow, and no process that could take it is running."""
    asked = (
        "INSERT INTO inbox (id, owner, flow, asset_id, amount, terms, space, requested_at, error)"
        " SELECT gen_random_uuid(), 7, 'deposit', 1, 1, '{}', '', now() - %s * interval '1 second',"
        " %s FROM generate_series(1, 3)"
    )

    async def scene(rig: Rig) -> None:
        watch, told = watching(rig)
        with psycopg.connect(database, options=f"-c search_path={SCHEMA}") as connection:
            connection.execute(asked, (299, None))
            connection.commit()
            await watch.look()
            assert told == []
            connection.execute(asked, (301, None))
            connection.commit()
            halt = await rig.store.halt("a test", "test")
            await watch.look()
            assert told == [], "while all is halted they are meant to wait"
            await rig.store.resume("a test", "test", [halt])
            await watch.look()
            await watch.look()
            [alert] = told
            assert (alert.code, alert.alarm) == (AlertCode.REQUESTS_WAITING, Alarm.PAGE)
            assert alert.cause == (
                "3 requests for deposit wait in the inbox for over 300 s: no process has taken them"
            )
            connection.execute("UPDATE inbox SET outcome = 'created', decided_at = now()")
        await watch.look()
        assert [a.cleared for a in told] == [False, True]

    play_postgres(scene)


def test_a_full_audit_that_does_not_get_through_is_told(play_postgres: Play, database: str) -> None:
    async def scene(rig: Rig) -> None:
        watch, told = watching(rig)
        with psycopg.connect(database, options=f"-c search_path={SCHEMA}") as connection:
            verified = "UPDATE audit_sweep SET verified_at = now() - %s * interval '1 hour'"
            for hours, causes in ((47, []), (49, [AlertCode.AUDIT_LATE])):
                connection.execute(verified, (hours,))
                connection.commit()
                await watch.look()
                assert [alert.code for alert in told] == causes
            connection.execute(verified, (1,))
        await watch.look()
        assert told[-1].cause == "cleared: not everything was audited for over 48 hours"

    play_postgres(scene)


async def _all_ended(rig: Rig) -> bool:
    assert isinstance(rig.store, PostgresStore)
    statement = "SELECT count(*) FROM transfers WHERE lane IS NOT NULL"
    [(found,)] = await rig.store.run(statement, {})
    return bool(found == 0)


def test_a_cause_that_comes_back_is_told_again() -> None:
    told: list[Alert] = []
    reporter = AlertReporter(told.append)
    trouble = {("owner", "7"): Condition(Alert(Alarm.PAGE, AlertCode.OWNER_BUSY, "too many"))}
    for second, found in enumerate((trouble, trouble, {}, {}, trouble)):
        reporter.judge(found, second)
    assert [a.cause for a in told] == ["too many", "cleared: too many", "too many"]


def test_further_stuck_transfers_of_a_lane_are_counted_and_told_when_they_double() -> None:
    told: list[Alert] = []
    reporter = AlertReporter(told.append)
    for second, count in enumerate((1, 1, 2, 3, 4, 7, 8, 9)):
        stuck = AlertSign(
            "stuck", "core", UUID(int=5), "TARGET_PENDING", count, 0, 2, 61.0 + second
        )
        reporter.judge(conditions([stuck], AlertThresholds()), second)
    assert [alert.count for alert in told] == [1, 2, 4, 8]
    assert {alert.code for alert in told} == {AlertCode.TARGET_PENDING}
    assert (told[0].transfer_id, told[0].retries, told[0].age_s) == (UUID(int=5), 2, 61.0)
    reporter.judge({}, 9)
    assert told[-1].cleared
    assert told[-1].code is AlertCode.TARGET_PENDING
