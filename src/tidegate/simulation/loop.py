"""Virtual time and seeded order for ordinary asyncio code: no sockets, no threads, no waiting."""

import asyncio
import gc
import random
from asyncio import events
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context
from functools import partial
from heapq import heappop, heappush
from typing import Any, TypeVar, cast

import msgspec

from tidegate.store.memory_transaction import yield_once

T = TypeVar("T")

START_S = 1_700_000_000.0
RESOLUTION_S = 1e-6
MAX_ROUNDS = 10


class SimHandle(msgspec.Struct, eq=False):
    """One callback, now or later. Cancelling leaves it where it is, with nothing to do.

    A struct and no `asyncio.Handle`, which takes three times as long to make: a seed makes
    thousands.
    """

    callback: Callable[..., object] | None
    args: tuple[Any, ...]
    context: Context

    def cancel(self) -> None:
        self.callback = None

    def cancelled(self) -> bool:
        return self.callback is None


_RUNNING: "list[SimLoop]" = []  # The loop, while it runs.


class SimLoop(asyncio.BaseEventLoop):
    """One seed, one schedule: what is ready runs in an order thrown with the seed's dice.

    Every simulated process has a context, in which all of its tasks run. A process that is
    killed never runs again, not even its `finally`: its callbacks are dropped.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.now_s = START_S
        self.steps = 0
        self._throw = random.Random(seed).random  # noqa: S311  To be thrown again.
        self._soon: list[SimHandle] = []
        self._later: list[tuple[float, int, SimHandle]] = []
        self._number = 0
        self.own = self._current = Context()  # Of the world itself, which never dies.
        self._dead: set[int] = set()
        # A collected coroutine would run its `finally`, and of contexts the ids must stay theirs.
        self._kept: list[tuple[asyncio.Task[Any] | None, Context]] = []
        self._dropped: list[SimHandle] = []
        self.unhandled: list[BaseException] = []  # What tasks died of, and nobody noticed.
        # In place of a method: a future is made at every other step.
        self.create_future = partial(asyncio.Future, loop=self)  # type: ignore[method-assign]

    # Never. Asked for every future and every task: so it is no function of Python's.
    get_debug = staticmethod(bool)

    def time(self) -> float:
        return self.now_s

    def kill(self, context: Context) -> None:
        self._dead.add(id(context))
        self._kept.append((None, context))

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> SimHandle:
        due = SimHandle(callback, args, self._current if context is None else context)
        self._soon.append(due)
        return due

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> SimHandle:
        due = SimHandle(callback, args, self._current if context is None else context)
        self._number += 1
        heappush(self._later, (when, self._number, due))
        return due

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> SimHandle:
        # Not by way of `call_at`: half of all that happens in a seed is that somebody sleeps.
        due = SimHandle(callback, args, self._current if context is None else context)
        self._number = number = self._number + 1
        heappush(self._later, (self.now_s + delay, number, due))
        return due

    def create_task(self, coro: Any, *, context: Any = None, **_: object) -> Any:
        own = self._current if context is None else context
        # With a name, because to number it takes as long as all the rest.
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name="", context=own)
        self._kept.append((task, own))
        return task

    @staticmethod
    def _be_running(loop: "SimLoop | None") -> None:
        events._set_running_loop(loop)  # noqa: SLF001  As any loop does.
        _RUNNING[:] = [] if loop is None else [loop]

    def run_to_end(self, main: "asyncio.Task[T]") -> None:
        """Run until one task is done; then the clock stands still."""
        soon, later, dead, throw = self._soon, self._later, self._dead, self._throw
        own, ended, steps = self.own, main.done, 0
        self._be_running(self)
        try:
            while True:
                if not soon:
                    if not later:
                        raise RuntimeError("deadlock: nothing is ready and no timer is set")
                    # Never less than the clock's resolution: a timer that fires a hair too
                    # early and is set anew would otherwise be set for ever.
                    self.now_s = now_s = max(later[0][0], self.now_s + RESOLUTION_S)
                    while later and later[0][0] <= now_s:
                        soon.append(heappop(later)[2])
                # The last takes the place of the one that is chosen.
                due = soon.pop()
                if (others := len(soon)) and (at := int(throw() * (others + 1))) < others:
                    due, soon[at] = soon[at], due
                callback, context = due.callback, due.context
                if callback is None:
                    continue
                if dead and id(context) in dead:
                    self._dropped.append(due)
                    continue
                self._current = context
                steps += 1
                # The context is not entered: no simulated code uses context variables.
                callback(*due.args)
                if context is own and ended():
                    break
        finally:
            self.steps += steps
            self._be_running(None)

    def _leftovers(self) -> "list[asyncio.Task[Any]]":
        """The tasks that are not done. What others died of unnoticed is kept, but for the dead."""
        left: list[asyncio.Task[Any]] = []
        for task, context in self._kept:
            if task is None:
                continue
            if not task.done():
                left.append(task)
            elif task._log_traceback:  # noqa: SLF001
                fault = task.exception()
                if fault is not None and id(context) not in self._dead:
                    self.unhandled.append(fault)
        self._kept = []
        return left

    def bury(self) -> None:
        """End what is left over, the dead included, without any effect that counts."""
        left = self._leftovers()
        self._dead.clear()
        self._soon += self._dropped
        self._be_running(self)
        try:
            for _ in range(MAX_ROUNDS):  # Some swallow their cancelling once.
                for task in left:
                    task.cancel()
                while self._soon:
                    due = self._soon.pop()
                    if due.callback is not None:
                        due.callback(*due.args)
                if all(task.done() for task in left):
                    break
        finally:
            self._be_running(None)
        for task in left:
            if task.done() and not task.cancelled():
                task.exception()
        self._later.clear()
        self.close()


async def sleep(seconds: float) -> None:
    """As `asyncio.sleep` does, with as many turns; here it is most of what is simulated."""
    if seconds <= 0:
        await yield_once()
        return
    # Not `get_running_loop`, which asks the kernel each time which process this is.
    [loop] = _RUNNING
    rest = loop.create_future()
    timer = loop.call_later(seconds, _end, rest)
    try:
        await rest
    finally:
        timer.cancel()


async def done_within(task: "asyncio.Task[Any]", seconds: float) -> bool:
    """Whether it is done by then. As `asyncio.wait` for one task, with as many turns."""
    [loop] = _RUNNING
    rest: asyncio.Future[None] = loop.create_future()

    def end(_: object) -> None:
        timer.cancel()
        _end(rest)

    timer = loop.call_later(seconds, _end, rest)
    task.add_done_callback(end)
    try:
        await rest
    finally:
        timer.cancel()
        task.remove_done_callback(end)
    return task.done()


def _end(rest: "asyncio.Future[None]") -> None:
    if not rest.done():
        rest.set_result(None)


def simulate(seed: int, main: Callable[[SimLoop], Coroutine[Any, Any, T]]) -> "asyncio.Task[T]":
    """Run to the end in virtual time. The task is done: with a result, or with an exception."""
    loop = SimLoop(seed)
    task = cast("asyncio.Task[T]", loop.create_task(main(loop)))
    try:
        loop.run_to_end(task)
    finally:
        loop.bury()
    return task


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage is collected meanwhile: when Python would do it, no seed says.

    That of the run before goes first, which nobody holds any more. At the end of a run some of it
    is still held, would be taken for old, and would never be looked at again.
    """
    gc.collect(0)
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
