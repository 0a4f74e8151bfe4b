"""Background tasks: repeated for ever, tried again when they fail, with alerts on failure."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from tidegate.core.answers import Alarm, Unreachable
from tidegate.core.ports import StoreUnavailable
from tidegate.engine.alerts import Alert, AlertCode

LONGEST_PAUSE_S = 30.0  # The longest pause between two rounds while a task fails.


class BackgroundTask(NamedTuple):
    """One task. Each round does the work once, or raises."""

    name: str
    work: Callable[[], Awaitable[None]]
    every_s: float
    code: AlertCode = AlertCode.BACKGROUND_FAILED
    first_s: float = 0.0  # The pause before the first round.
    longest_s: float | None = None  # Replaces LONGEST_PAUSE_S.
    late_s: float | None = None  # Raise an alert after so long without a success.


class BackgroundTasks:
    """Runs tasks. A failure raises one alert, which is cleared by the next success.

    A round that cannot reach the database or a system raises no alert: the component that needs
    that system does. Only the age of the last success grows. A task that no other component
    depends on has `late_s` as a bound for that age.
    """

    def __init__(self, alert: Callable[[Alert], None], clock: Callable[[], float]) -> None:
        self._alert, self._clock = alert, clock
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._succeeded_s: dict[str, float] = {}
        self._raised: dict[str, Alert] = {}
        self._faults: dict[str, BaseException] = {}  # The latest since the last success.
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def start(self, task: BackgroundTask) -> None:
        assert task.name not in self._tasks, f"{task.name} runs already"
        self._succeeded_s[task.name] = self._clock()
        self._tasks[task.name] = asyncio.create_task(self._repeat(task), name=task.name)
        self._rearm(task)

    async def stop(self, *names: str) -> None:
        """Stop these tasks, or all. A task that is stopped already is ignored."""
        started = [name for name in names or list(self._tasks) if name in self._tasks]
        running = [self._tasks.pop(name) for name in started]
        for loop_task in running:
            loop_task.cancel()
        for timer in [self._timers.pop(name) for name in started if name in self._timers]:
            timer.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def ages(self) -> Mapping[str, float]:
        """The seconds since the last success of each task, or since its start."""
        now_s = self._clock()
        return {name: now_s - self._succeeded_s[name] for name in self._tasks}

    async def _repeat(self, task: BackgroundTask) -> None:
        failures = 0
        await asyncio.sleep(task.first_s)
        while True:
            # A separate asyncio task, so that its exception or cancellation becomes a value here.
            round_ = asyncio.ensure_future(_round(task))
            # A callback, because an exception of the alert function must not end this loop.
            round_.add_done_callback(partial(self._note, task))
            try:
                await asyncio.wait([round_])
            finally:
                round_.cancel()
                await asyncio.gather(round_, return_exceptions=True)
            failures = 0 if _fault(round_) is None else failures + 1
            longest_s = task.longest_s or LONGEST_PAUSE_S
            pause_s = min(2.0 ** min(failures, 10), longest_s) if failures else 0.0
            await asyncio.sleep(max(task.every_s, pause_s))

    def _note(self, task: BackgroundTask, round_: "asyncio.Future[None]") -> None:
        fault = _fault(round_)
        if fault is not None:
            self._faults[task.name] = fault
            if not _is_outage(fault):
                self._raise_alert(
                    task, f"{task.name} failed and is tried again: {_described(fault)}"
                )
            return
        self._succeeded_s[task.name] = self._clock()
        self._faults.pop(task.name, None)
        self._rearm(task)
        if (raised := self._raised.pop(task.name, None)) is not None:
            cause = f"cleared: {raised.cause}"
            self._alert(replace(raised, alarm=Alarm.NONE, cause=cause, cleared=True))

    def _rearm(self, task: BackgroundTask) -> None:
        """Start the timer of `late_s` anew. A timer notices a round that never ends, too."""
        if (timer := self._timers.pop(task.name, None)) is not None:
            timer.cancel()
        if task.late_s is not None and task.name in self._tasks:
            loop = asyncio.get_running_loop()
            self._timers[task.name] = loop.call_later(task.late_s, self._alert_late, task)

    def _alert_late(self, task: BackgroundTask) -> None:
        fault = self._faults.get(task.name)
        reason = "its round has not ended yet" if fault is None else _described(fault)
        cause = f"{task.name} has not succeeded for over {task.late_s:g} s: {reason}"
        self._raise_alert(task, cause)

    def _raise_alert(self, task: BackgroundTask, cause: str) -> None:
        if task.name in self._tasks and task.name not in self._raised:
            self._raised[task.name] = Alert(Alarm.CRITICAL, task.code, cause)
            self._alert(self._raised[task.name])


def _is_outage(fault: BaseException) -> bool:
    return isinstance(fault, StoreUnavailable | Unreachable)


async def _round(task: BackgroundTask) -> None:
    await task.work()


def _fault(round_: "asyncio.Future[None]") -> BaseException | None:
    return asyncio.CancelledError("cancelled") if round_.cancelled() else round_.exception()


def _described(fault: BaseException) -> str:
    return f"{type(fault).__name__}: {fault}"
