"""A closed loop: so many in flight, each followed by the next, timed inside a window."""

import asyncio
import itertools
import sys
import threading
import time
from array import array
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeAlias

from bench.spec import Result, Spec

LONG_S = 30.0


class Outcome(NamedTuple):
    """What one request came to."""

    ended: int = 1
    refused: int = 0
    overloaded: int = 0


DONE = Outcome()
REFUSED = Outcome(refused=1)

One: TypeAlias = Callable[[int], Awaitable[Outcome]]


class Window:
    """Between warming up and draining; whoever watches us is told of both of its ends."""

    def __init__(self, spec: Spec) -> None:
        self._began_s = time.perf_counter()
        self.opens_s = self._began_s + spec.warm_s
        self.closes_s = self.opens_s + spec.seconds
        self.latencies = array("d")
        # Of a long run only some: what we remember ourselves must not look like a leak.
        self._every = 1 + int(spec.seconds / LONG_S)
        self._seen = self.counted = self.made = self.refused = self.overloaded = 0
        # A thread, because a loop that is busy would tell it late.
        self._teller = threading.Thread(target=self._tell, daemon=True)
        self._teller.start()

    @property
    def over(self) -> bool:
        return time.perf_counter() >= self.closes_s

    def note(self, started_s: float, outcome: Outcome) -> None:
        ended_s = time.perf_counter()
        self.made += outcome.ended
        self.refused += outcome.refused
        self.overloaded += outcome.overloaded
        if self.opens_s <= ended_s < self.closes_s:
            self.counted += outcome.ended
            self._seen += 1
            if self._seen % self._every == 0:
                self.latencies.append(ended_s - started_s)

    def result(self) -> Result:
        self._teller.join()
        times = sorted(self.latencies) or [0.0]
        return Result(
            counted=self.counted,
            seconds=self.closes_s - self.opens_s,
            made=self.made,
            p50_ms=quantile(times, 0.50) * 1000,
            p95_ms=quantile(times, 0.95) * 1000,
            p99_ms=quantile(times, 0.99) * 1000,
            max_ms=times[-1] * 1000,
            refused=self.refused,
            overloaded=self.overloaded,
        )

    def _tell(self) -> None:
        for word, at_s in (("open", self.opens_s), ("closed", self.closes_s)):
            time.sleep(max(at_s - time.perf_counter(), 0.0))
            say(word)


async def drive(spec: Spec, one: One) -> Result:
    """Keep `inflight` requests under way until the window closes, then wait for the last."""
    window, numbers = Window(spec), itertools.count()

    async def loop() -> None:
        while not window.over:
            started_s = time.perf_counter()
            window.note(started_s, await one(next(numbers)))

    async with asyncio.TaskGroup() as group:
        for _ in range(spec.inflight):
            group.create_task(loop())
    return window.result()


def quantile(ordered: list[float], share: float) -> float:
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def say(word: str) -> None:
    sys.stdout.write(word + "\n")
    sys.stdout.flush()
