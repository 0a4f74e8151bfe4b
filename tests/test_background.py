"""Background tasks are started again when they fail, and people are told, once."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

import tidegate.background
from tidegate.background import BackgroundTask, BackgroundTasks
from tidegate.core.answers import Alarm, Unreachable
from tidegate.core.ports import StoreFault, StoreUnavailable
from tidegate.engine.alerts import Alert, AlertCode


class Rounds:
    """Work that fails as it is told to, round by round, and then does its work."""

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


def played(scene: Callable[[BackgroundTasks, list[Alert], Time], Awaitable[None]]) -> None:
    async def whole() -> None:
        alerts: list[Alert] = []
        time = Time()
        background = BackgroundTasks(alerts.append, time)
        await asyncio.wait_for(scene(background, alerts, time), 20)
        await background.stop()

    asyncio.run(whole())


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tidegate.background, "LONGEST_PAUSE_S", 0.001)


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110
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
def test_a_task_that_raises_goes_on_and_is_told_once_and_when_it_is_over(
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

    played(scene)


@pytest.mark.parametrize("fault", [StoreUnavailable("gone"), Unreachable("no word")])
def test_a_round_that_reaches_nobody_is_put_off_and_its_age_tells(fault: Exception) -> None:
    async def scene(background: BackgroundTasks, alerts: list[Alert], time: Time) -> None:
        work = Rounds(None, *[fault] * 10)
        background.start(BackgroundTask("audit", work, 0.001))
        await until(lambda: len(work.faults) < 5)
        time.now_s += 60
        assert background.ages() == {"audit": 60.0}
        await until(lambda: work.done >= 2)
        assert background.ages() == {"audit": 0.0}
        assert alerts == []

    played(scene)


LATE_S = 0.2


@pytest.mark.parametrize("fault", [StoreUnavailable("gone"), Unreachable("no word")])
def test_a_task_that_is_put_off_for_too_long_is_told_once_and_when_it_is_over(
    fault: Exception,
) -> None:
    async def scene(background: BackgroundTasks, alerts: list[Alert], _: Time) -> None:
        work = Rounds(None, *[fault] * 10_000)
        clock = asyncio.get_running_loop().time
        began_s = clock()
        chore = BackgroundTask("leadership", work, 0.001, AlertCode.LEADER_UNKNOWN, late_s=LATE_S)
        background.start(chore)
        await until(lambda: bool(alerts))
        assert clock() - began_s > 0.9 * LATE_S
        await asyncio.sleep(2 * LATE_S)
        [alert] = alerts
        assert (alert.alarm, alert.code) == (Alarm.CRITICAL, AlertCode.LEADER_UNKNOWN)
        assert alert.cause == (
            f"leadership has not succeeded for over 0.2 s: {type(fault).__name__}: {fault}"
        )
        work.faults.clear()
        await until(lambda: len(alerts) == 2)
        assert (alerts[1].code, alerts[1].cleared) == (AlertCode.LEADER_UNKNOWN, True)

    played(scene)


def test_a_round_that_does_not_end_is_told() -> None:
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

    played(scene)


def test_a_task_that_succeeds_now_and_then_is_not_late() -> None:
    async def scene(background: BackgroundTasks, alerts: list[Alert], _: Time) -> None:
        late_s = 5 * LATE_S
        work = Rounds(*[StoreUnavailable("gone"), None] * 1_000)
        background.start(BackgroundTask("watch", work, LATE_S / 10, late_s=late_s))
        await asyncio.sleep(1.5 * late_s)
        assert alerts == []
        await background.stop("watch")
        background.start(BackgroundTask("watch", Rounds(), LATE_S / 10))
        await asyncio.sleep(1.5 * late_s)
        assert alerts == [], "what was stopped is not late, and what was started again neither"

    played(scene)


def test_a_task_that_never_succeeded_is_as_old_as_its_start() -> None:
    async def scene(background: BackgroundTasks, alerts: list[Alert], time: Time) -> None:
        background.start(BackgroundTask("keys", Rounds(*[OSError("no")] * 10_000), 0.001))
        await until(lambda: bool(alerts))
        time.now_s += 7
        assert background.ages() == {"keys": 7.0}

    played(scene)


def test_an_alert_that_raises_ends_no_task() -> None:
    async def whole() -> None:
        def raises(_: Alert) -> None:
            raise ZeroDivisionError("a planted bug")

        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        background, work = BackgroundTasks(raises, Time()), Rounds(OSError("no"))
        background.start(BackgroundTask("assets", work, 0.001))
        await asyncio.wait_for(until(lambda: work.done >= 2), 20)
        await background.stop()

    asyncio.run(whole())


def test_a_stop_ends_the_round_under_way_and_tells_nobody() -> None:
    async def scene(background: BackgroundTasks, alerts: list[Alert], _: Time) -> None:
        begun, ended = asyncio.Event(), asyncio.Event()

        async def slow() -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        background.start(BackgroundTask("slow", slow, 0.001))
        background.start(BackgroundTask("other", Rounds(), 0.001))
        await begun.wait()
        await background.stop("slow")
        assert ended.is_set()
        assert (list(background.ages()), alerts) == (["other"], [])
        await background.stop()
        await background.stop("slow")
        assert background.ages() == {}

    played(scene)
