"""An event loop with virtual time and seeded order, without sockets, threads or real waiting."""

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
    """One scheduled callback. Cancelling leaves it in its queue, without a callback.

    A struct instead of an `asyncio.Handle`, which takes three times as long to create: a seed
    creates thousands.
    """

    callback: Callable[..., object] | None
    args: tuple[Any, ...]
    context: Context

    def cancel(self) -> None:
        self.callback = None

    def cancelled(self) -> bool:
        return self.callback is None


_RUNNING: "list[SimLoop]" = []  # Contains the loop while it runs.


class SimLoop(asyncio.BaseEventLoop):
    """One seed, one schedule: ready callbacks run in a random order that the seed determines.

    Every simulated process has a context, in which all of its tasks run. A killed process never
    runs again, not even its `finally`: its callbacks are dropped.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.now_s = START_S
        self.steps = 0
        self._random = random.Random(seed).random  # noqa: S311  It must be reproducible.
        self._ready: list[SimHandle] = []
        self._timers: list[tuple[float, int, SimHandle]] = []
        self._timer_count = 0
        self.world_context = self._current = Context()  # Of the world itself, never killed.
        self._dead: set[int] = set()
        # Tasks are referenced here because a collected coroutine would run its `finally`, and
        # killed contexts because their ids must not be used again.
        self._references: list[tuple[asyncio.Task[Any] | None, Context]] = []
        self._dropped: list[SimHandle] = []
        self.unhandled: list[BaseException] = []  # Exceptions of tasks that were never retrieved.
        # An attribute instead of a method, which is slower: every other step creates a future.
        self.create_future = partial(asyncio.Future, loop=self)  # type: ignore[method-assign]

    # Always False. A C function, because it is called for every future and every task.
    get_debug = staticmethod(bool)

    def time(self) -> float:
        return self.now_s

    def kill(self, context: Context) -> None:
        self._dead.add(id(context))
        self._references.append((None, context))

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> SimHandle:
        handle = SimHandle(callback, args, self._current if context is None else context)
        self._ready.append(handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> SimHandle:
        handle = SimHandle(callback, args, self._current if context is None else context)
        self._timer_count += 1
        heappush(self._timers, (when, self._timer_count, handle))
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> SimHandle:
        # Does not call `call_at`, for speed: half of all steps of a seed are sleeps.
        handle = SimHandle(callback, args, self._current if context is None else context)
        self._timer_count = number = self._timer_count + 1
        heappush(self._timers, (self.now_s + delay, number, handle))
        return handle

    def create_task(self, coro: Any, *, context: Any = None, **_: object) -> Any:
        task_context = self._current if context is None else context
        # With a name, because generating one takes as long as everything else here.
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name="", context=task_context)
        self._references.append((task, task_context))
        return task

    @staticmethod
    def _set_running(loop: "SimLoop | None") -> None:
        events._set_running_loop(loop)  # noqa: SLF001  As every event loop does.
        _RUNNING[:] = [] if loop is None else [loop]

    def run_to_end(self, main: "asyncio.Task[T]") -> None:
        """Run until this task is done."""
        ready, timers, dead, random_ = self._ready, self._timers, self._dead, self._random
        world_context, main_done, steps = self.world_context, main.done, 0
        self._set_running(self)
        try:
            while True:
                if not ready:
                    if not timers:
                        raise RuntimeError("deadlock: nothing is ready and no timer is set")
                    # Advance by at least the clock's resolution: otherwise a timer that fires
                    # slightly early and is set again would be set for ever.
                    self.now_s = now_s = max(timers[0][0], self.now_s + RESOLUTION_S)
                    while timers and timers[0][0] <= now_s:
                        ready.append(heappop(timers)[2])
                # Choose one at random. The last one moves to its index.
                handle = ready.pop()
                if (others := len(ready)) and (index := int(random_() * (others + 1))) < others:
                    handle, ready[index] = ready[index], handle
                callback, context = handle.callback, handle.context
                if callback is None:
                    continue
                if dead and id(context) in dead:
                    self._dropped.append(handle)
                    continue
                self._current = context
                steps += 1
                # The context is not entered: no simulated code uses context variables.
                callback(*handle.args)
                if context is world_context and main_done():
                    break
        finally:
            self.steps += steps
            self._set_running(None)

    def _pending_tasks(self) -> "list[asyncio.Task[Any]]":
        """The tasks that are not done. Also collects unhandled exceptions of live processes."""
        pending: list[asyncio.Task[Any]] = []
        for task, context in self._references:
            if task is None:
                continue
            if not task.done():
                pending.append(task)
            elif task._log_traceback:  # noqa: SLF001
                fault = task.exception()
                if fault is not None and id(context) not in self._dead:
                    self.unhandled.append(fault)
        self._references = []
        return pending

    def shut_down(self) -> None:
        """Cancel all pending tasks, those of killed processes too. No effect counts any more."""
        pending = self._pending_tasks()
        self._dead.clear()
        self._ready += self._dropped
        self._set_running(self)
        try:
            for _ in range(MAX_ROUNDS):  # Some tasks catch their first cancellation.
                for task in pending:
                    task.cancel()
                while self._ready:
                    handle = self._ready.pop()
                    if handle.callback is not None:
                        handle.callback(*handle.args)
                if all(task.done() for task in pending):
                    break
        finally:
            self._set_running(None)
        for task in pending:
            if task.done() and not task.cancelled():
                task.exception()
        self._timers.clear()
        self.close()


async def sleep(seconds: float) -> None:
    """Like `asyncio.sleep`, with as many loop steps, but faster: seeds mostly sleep."""
    if seconds <= 0:
        await yield_once()
        return
    # Not `get_running_loop`, which calls getpid each time.
    [loop] = _RUNNING
    future = loop.create_future()
    timer = loop.call_later(seconds, _end, future)
    try:
        await future
    finally:
        timer.cancel()


async def done_within(task: "asyncio.Task[Any]", seconds: float) -> bool:
    """Whether the task ends in time. Like `asyncio.wait` for one task, with as many steps."""
    [loop] = _RUNNING
    future: asyncio.Future[None] = loop.create_future()

    def end(_: object) -> None:
        timer.cancel()
        _end(future)

    timer = loop.call_later(seconds, _end, future)
    task.add_done_callback(end)
    try:
        await future
    finally:
        timer.cancel()
        task.remove_done_callback(end)
    return task.done()


def _end(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def simulate(seed: int, main: Callable[[SimLoop], Coroutine[Any, Any, T]]) -> "asyncio.Task[T]":
    """Run to the end in virtual time. The returned task is done, maybe with an exception."""
    loop = SimLoop(seed)
    task = cast("asyncio.Task[T]", loop.create_task(main(loop)))
    try:
        loop.run_to_end(task)
    finally:
        loop.shut_down()
    return task


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Switch the garbage collector off: no seed determines when it would run.

    Collects the garbage of the previous run first. At the end of a run some of it is still
    referenced: it would move to an older generation and never be collected again.
    """
    gc.collect(0)
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
