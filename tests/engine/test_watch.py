"""The alert rules: each fires at its threshold, once, and says when it is over."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import psycopg
import pytest

from tests.conftest import SCHEMA
from tests.engine.rig import OWNER, Execute, Play, Rig, made, request
from tidegate.core.answers import Alarm, Answer, Rejected, Unknown
from tidegate.core.transfer import Question
from tidegate.engine.alerts import Alert
from tidegate.engine.watch import Thresholds, Trouble, Watch, troubles
from tidegate.store.auditing import Sign
from tidegate.store.postgres import PostgresStore
from tidegate.systems.ledger import Status

pytestmark = pytest.mark.slow

QUIET = Thresholds(failure_among=10_000)
SECOND = 1_000_000


def watching(rig: Rig, limits: Thresholds = QUIET) -> tuple[Watch, list[Alert]]:
    assert isinstance(rig.store, PostgresStore)
    told: list[Alert] = []
    return Watch(rig.store, rig.flows, told.append, limits), told


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
            assert watch.firing == [alert.cause]
            rig.outside.twist = None
            await rig.ended([transfer])
        await watch.look()
        assert [a.alarm for a in told] == [Alarm.CRITICAL, Alarm.NONE]
        assert told[-1].cause == f"cleared: {alert.cause}"
        assert watch.firing == []

    play_postgres(scene)


@pytest.mark.parametrize("failure", ["refused", "silent"])
def test_mon_002_a_refund_that_failed_three_times_is_critical(
    play_postgres: Play, failure: str
) -> None:
    async def scene(rig: Rig) -> None:
        watch, told = watching(rig, Thresholds(refund_failures=2, failure_among=10_000))
        await rig.set_status(Status.DISABLED)  # The target of the way out.

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
    assert Thresholds().refund_failures == 3


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
        watch, told = watching(rig, Thresholds(stuck_s=10_000, failure_among=10_000))
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


async def _all_ended(rig: Rig) -> bool:
    assert isinstance(rig.store, PostgresStore)
    statement = "SELECT count(*) FROM transfers WHERE lane IS NOT NULL"
    [(found,)] = await rig.store.run(statement, {})
    return bool(found == 0)


def test_failed_and_ended_transfers_of_the_last_minute_are_counted(play_postgres: Play) -> None:
    async def scene(rig: Rig) -> None:
        limits = Thresholds(failure_among=5, failure_for_s=0)
        watch, told = watching(rig, limits)
        async with rig.engine() as engine:
            good = [await made(engine, request("in", 1)) for _ in range(4)]
            bad = [await made(engine, request("in", 10**9)) for _ in range(1)]
            await rig.ended([*good, *bad])
        await watch.look()
        assert [a.cause for a in told] == ["1 of 6 transfers of the last minute failed"]

    play_postgres(scene)


def test_a_failure_share_over_five_percent_must_last_for_two_minutes() -> None:
    told: list[Alert] = []
    watch = Watch(None, {}, told.append)  # type: ignore[arg-type]
    high, low = Sign("ended", "", None, "", 6, 100), Sign("ended", "", None, "", 5, 100)
    few = Sign("ended", "", None, "", 19, 19)

    def at(seconds: int, sign: Sign) -> None:
        watch.judge(troubles([sign], [], Thresholds()), seconds * SECOND)

    at(0, high)
    at(100, low)  # It did not last.
    at(110, high)
    at(229, high)
    assert told == []
    at(230, high)
    at(240, high)
    assert [a.cause for a in told] == ["6 of 100 transfers of the last minute failed"]
    assert told[0].alarm is Alarm.PAGE
    at(250, few)
    assert told[-1] == Alert(Alarm.NONE, "cleared: 6 of 100 transfers of the last minute failed")


def test_p95_over_a_second() -> None:
    fast, slow = [0.1] * 95, [1.5] * 5
    limits = Thresholds()
    assert troubles([], fast + slow, limits) == {}
    assert troubles([], [*fast[:94], *slow, 1.5], limits) == {
        ("slow", ""): Trouble(Alarm.PAGE, "P95 of 100 requests is 1.500 s")
    }
    assert troubles([], [1.0] * 100, limits) == {}
    assert troubles([], [9.0] * 19, limits) == {}


def test_slow_requests_are_told_and_cleared(play_postgres: Play) -> None:
    async def scene(rig: Rig) -> None:
        watch, told = watching(rig)
        for _ in range(20):
            watch.took(2.0)
        await watch.look()
        await watch.look()
        assert [a.cause for a in told] == ["P95 of 20 requests is 2.000 s"]
        for _ in range(1_000):
            watch.took(0.001)
        await watch.look()
        assert told[-1].alarm is Alarm.NONE

    play_postgres(scene)


def test_a_cause_that_comes_back_is_told_again() -> None:
    told: list[Alert] = []
    watch = Watch(None, {}, told.append)  # type: ignore[arg-type]
    trouble = {("owner", "7"): Trouble(Alarm.PAGE, "too many")}
    for second, found in enumerate((trouble, trouble, {}, {}, trouble)):
        watch.judge(found, second * SECOND)
    assert [a.cause for a in told] == ["too many", "cleared: too many", "too many"]


def test_the_loop_outlives_a_store_that_is_away(play_postgres: Play) -> None:
    async def scene(rig: Rig) -> None:
        watch, _ = watching(rig)
        looping = asyncio.ensure_future(watch.watch_forever(0.001))
        await asyncio.sleep(0.05)
        assert isinstance(rig.store, PostgresStore)
        await rig.store.__aexit__()
        await asyncio.sleep(0.05)
        assert not looping.done()
        looping.cancel()

    play_postgres(scene)
