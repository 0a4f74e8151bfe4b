"""Background tasks are tried again when they fail, and each failure raises one alert."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

import tidegate.background
from tidegate.background import BackgroundTask, BackgroundTasks
from tidegate.core.answers import Alarm, Unreachable
from tidegate.core.ports import StoreFault, StoreUnavailable
from tidegate.engine.alerts import Alert, AlertCode


class Rounds:
    """Work that raises these faults round by round, and then succeeds."""

    def __init__(self, *faults: BaseException | None) -> None:
        self.faults = list(faults)
        self.done = 0

    async def __call__(self) -> None:
        await asyncio.sleep(0)
        if self.faults and (fault := self.faults.pop(0)) is not None:
            raise fault
        self.done += 1


class Time:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def play(scene: Callable[[BackgroundTasks, list[Alert], Time], Awaitable[None]]) -> None:
    async def run() -> None:
        alerts: list[Alert] = []
        time = Time()
        background = BackgroundTasks(alerts.append, time)
        await asyncio.wait_for(scene(background, alerts, time), 20)
        await background.stop()

    asyncio.run(run())


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tidegate.background, "LONGEST_PAUSE_S", 0.001)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    "fault",
    [
        ZeroDivisionError("a bug"),
        StoreFault("42501: permission denied"),
        OSError("no such file"),
        asyncio.CancelledError(),
        AssertionError(),
    ],
)
def test_a_task_that_raises_continues_and_raises_one_alert_until_it_succeeds(
    fault: BaseException,
) -> None:
    async def scene(background: BackgroundTasks, alerts: list[Alert], _: Time) -> None:
        work = Rounds(None, fault, fault, fault)
        background.start(BackgroundTask("assets", work, 0.001))
        await until(lambda: work.done >= 3)
        assert [(a.alarm, a.code, a.cleared) for a in alerts] == [
            (Alarm.CRITICAL, AlertCode.BACKGROUND_FAILED, False),
            (Alarm.NONE, AlertCode.BACKGROUND_FAILED, True),
        ]
        assert alerts[0].cause.startswith("assets failed and is tried again: ")

    play(scene)


@pytest.mark.parametrize("fault", [StoreUnavailable("lost"), Unreachable("no reply")])
def test_a_round_that_reaches_no_system_raises_no_alert_and_its_age_grows(fault: Exception) -> None:
    async def scene(background: BackgroundTasks, alerts: list[Alert], time: Time) -> None:
        work = Rounds(None, *[fault] * 10)
        background.start(BackgroundTask("audit", work, 0.001))
        await until(lambda: len(work.faults) < 5)
        time.now_s += 60
        assert background.ages() == {"audit": 60.0}
        await until(lambda: work.done >= 2)
        assert background.ages() == {"audit": 0.0}
        assert alerts == []

    play(scene)


LATE_S = 0.2


@pytest.mark.parametrize("fault", [StoreUnavailable("lost"), Unreachable("no reply")])
def test_a_task_without_a_success_for_too_long_raises_one_alert_until_it_succeeds(
    fault: Exception,
) -> None:
    async def scene(background: BackgroundTasks, alerts: list[Alert], _: Time) -> None:
        work = Rounds(None, *[fault] * 10_000)
        clock = asyncio.get_running_loop().time
        started_s = clock()
        task = BackgroundTask("leadership", work, 0.001, AlertCode.LEADER_UNKNOWN, late_s=LATE_S)
        background.start(task)
        await until(lambda: bool(alerts))
        assert clock() - started_s > 0.9 * LATE_S
        await asyncio.sleep(2 * LATE_S)
        [alert] = alerts
        assert (alert.alarm, alert.code) == (Alarm.CRITICAL, AlertCode.LEADER_UNKNOWN)
        assert alert.cause == (
            f"leadership has not succeeded for over 0.2 s: {type(fault).__name__}: {fault}"
        )
        work.faults.clear()
        await until(lambda: len(alerts) == 2)
        assert (alerts[1].code, alerts[1].cleared) == (AlertCode.LEADER_UNKNOWN, True)

    play(scene)


def test_a_round_that_does_not_end_raises_an_alert() -> None:
    async def scene(background: BackgroundTasks, alerts: list[Alert], _: Time) -> None:
        async def endless() -> None:
            await asyncio.Event().wait()

        background.start(BackgroundTask("watch", endless, 0.001, late_s=LATE_S))
        await until(lambda: bool(alerts))
        [alert] = alerts
        assert (alert.alarm, alert.code) == (Alarm.CRITICAL, AlertCode.BACKGROUND_FAILED)
        assert alert.cause == (
            "watch has not succeeded for over 0.2 s: its round has not ended yet"
        )

    play(scene)


def test_a_task_that_sometimes_succeeds_is_not_late() -> None:
    async def scene(background: BackgroundTasks, alerts: list[Alert], _: Time) -> None:
        late_s = 5 * LATE_S
        work = Rounds(*[StoreUnavailable("lost"), None] * 1_000)
        background.start(BackgroundTask("watch", work, LATE_S / 10, late_s=late_s))
        await asyncio.sleep(1.5 * late_s)
        assert alerts == []
        await background.stop("watch")
        background.start(BackgroundTask("watch", Rounds(), LATE_S / 10))
        await asyncio.sleep(1.5 * late_s)
        assert alerts == [], "neither the stopped task nor its successor is late"

    play(scene)


def test_the_age_of_a_task_without_a_success_is_the_time_since_its_start() -> None:
    async def scene(background: BackgroundTasks, alerts: list[Alert], time: Time) -> None:
        background.start(BackgroundTask("keys", Rounds(*[OSError("no")] * 10_000), 0.001))
        await until(lambda: bool(alerts))
        time.now_s += 7
        assert background.ages() == {"keys": 7.0}

    play(scene)


def test_an_exception_of_the_alert_function_does_not_end_a_task() -> None:
    async def run() -> None:
        def raises(_: Alert) -> None:
            raise ZeroDivisionError("a planted bug")

        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        background, work = BackgroundTasks(raises, Time()), Rounds(OSError("no"))
        background.start(BackgroundTask("assets", work, 0.001))
        await asyncio.wait_for(until(lambda: work.done >= 2), 20)
        await background.stop()

    asyncio.run(run())


def test_a_stop_ends_the_current_round_without_an_alert() -> None:
    async def scene(background: BackgroundTasks, alerts: list[Alert], _: Time) -> None:
        started, ended = asyncio.Event(), asyncio.Event()

        async def slow() -> None:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        background.start(BackgroundTask("slow", slow, 0.001))
        background.start(BackgroundTask("other", Rounds(), 0.001))
        await started.wait()
        await background.stop("slow")
        assert ended.is_set()
        assert (list(background.ages()), alerts) == (["other"], [])
        await background.stop()
        await background.stop("slow")
        assert background.ages() == {}

    play(scene)
