"""Work beside the requests: repeated for ever, started again when it fails, and watched."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from tidegate.core.answers import Alarm, Unreachable
from tidegate.core.ports import StoreUnavailable
from tidegate.engine.alerts import Alert, AlertCode

LONGEST_PAUSE_S = 30.0  # Between two tries of a task that fails.


class BackgroundTask(NamedTuple):
    """One task. Each round does the work once, and raises if it could not."""

    name: str
    work: Callable[[], Awaitable[None]]
    every_s: float
    code: AlertCode = AlertCode.BACKGROUND_FAILED
    first_s: float = 0.0  # Before the first round.
    longest_s: float | None = None  # Between two tries while it fails; None: LONGEST_PAUSE_S.
    late_s: float | None = None  # Without a success for so long, people are told in any case.


class BackgroundTasks:
    """Runs chores. A failure is told once, and that it is over; the next round comes anyway.

    A round that could not reach the database or a system is put off. Whoever needs that system
    tells people about it, and the age of the last success grows meanwhile. A chore that nobody
    else would miss has a bound for that: `late_s`.
    """

    def __init__(self, alert: Callable[[Alert], None], clock: Callable[[], float]) -> None:
        self._alert, self._clock = alert, clock
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._succeeded_s: dict[str, float] = {}
        self._told: dict[str, Alert] = {}
        self._faults: dict[str, BaseException] = {}  # Of the rounds since the last success.
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def start(self, chore: BackgroundTask) -> None:
        assert chore.name not in self._tasks, f"{chore.name} runs already"
        self._succeeded_s[chore.name] = self._clock()
        self._tasks[chore.name] = asyncio.create_task(self._repeat(chore), name=chore.name)
        self._rearm(chore)

    async def stop(self, *names: str) -> None:
        """End these chores, or all of them. Who starts a chore may stop it after all were."""
        chosen = [name for name in names or list(self._tasks) if name in self._tasks]
        ending = [self._tasks.pop(name) for name in chosen]
        for task in ending:
            task.cancel()
        for timer in [self._timers.pop(name) for name in chosen if name in self._timers]:
            timer.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    def ages(self) -> Mapping[str, float]:
        """How many seconds ago each chore last did its work, or was started."""
        now_s = self._clock()
        return {name: now_s - self._succeeded_s[name] for name in self._tasks}

    async def _repeat(self, chore: BackgroundTask) -> None:
        failures = 0
        await asyncio.sleep(chore.first_s)
        while True:
            # A task of its own, so that whatever it raises is a value here, a cancellation too.
            round_ = asyncio.ensure_future(_round(chore))
            # As a callback: what an alert raises must not end the chore.
            round_.add_done_callback(partial(self._note, chore))
            try:
                await asyncio.wait([round_])
            finally:
                round_.cancel()
                await asyncio.gather(round_, return_exceptions=True)
            failures = 0 if _fault(round_) is None else failures + 1
            longest_s = chore.longest_s or LONGEST_PAUSE_S
            pause_s = min(2.0 ** min(failures, 10), longest_s) if failures else 0.0
            await asyncio.sleep(max(chore.every_s, pause_s))

    def _note(self, chore: BackgroundTask, round_: "asyncio.Future[None]") -> None:
        fault = _fault(round_)
        if fault is not None:
            self._faults[chore.name] = fault
            if not put_off(fault):
                self._tell(chore, f"{chore.name} failed and is tried again: {_described(fault)}")
            return
        self._succeeded_s[chore.name] = self._clock()
        self._faults.pop(chore.name, None)
        self._rearm(chore)
        if (over := self._told.pop(chore.name, None)) is not None:
            cause = f"cleared: {over.cause}"
            self._alert(replace(over, alarm=Alarm.NONE, cause=cause, cleared=True))

    def _rearm(self, chore: BackgroundTask) -> None:
        """A timer and not a look after each round: a round that never ends is late as well."""
        if (timer := self._timers.pop(chore.name, None)) is not None:
            timer.cancel()
        if chore.late_s is not None and chore.name in self._tasks:
            loop = asyncio.get_running_loop()
            self._timers[chore.name] = loop.call_later(chore.late_s, self._tell_late, chore)

    def _tell_late(self, chore: BackgroundTask) -> None:
        fault = self._faults.get(chore.name)
        why = "its round has not ended yet" if fault is None else _described(fault)
        self._tell(chore, f"{chore.name} has not succeeded for over {chore.late_s:g} s: {why}")

    def _tell(self, chore: BackgroundTask, cause: str) -> None:
        if chore.name in self._tasks and chore.name not in self._told:
            self._told[chore.name] = Alert(Alarm.CRITICAL, chore.code, cause)
            self._alert(self._told[chore.name])


def put_off(fault: BaseException) -> bool:
    return isinstance(fault, StoreUnavailable | Unreachable)


async def _round(chore: BackgroundTask) -> None:
    await chore.work()


def _fault(round_: "asyncio.Future[None]") -> BaseException | None:
    return asyncio.CancelledError("cancelled") if round_.cancelled() else round_.exception()


def _described(fault: BaseException) -> str:
    return f"{type(fault).__name__}: {fault}"
