"""With few callers a batch is taken at once; with many it gathers requests for a bounded time."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tidegate.engine.batch_timer import GATHER_S, LARGE_BATCH, MANY_CALLERS, BatchTimer
from tidegate.simulation.loop import SimLoop, simulate


@dataclass
class Queue:
    """Requests that arrive, and loops that take them in batches."""

    loop: SimLoop
    batch_timer: BatchTimer = field(default_factory=BatchTimer)
    waiting: int = 0
    taken: list[tuple[float, int]] = field(default_factory=list)  # Time and size of each batch.

    def arrive(self, count: int = 1) -> None:
        for _ in range(count):
            self.waiting += 1
            self.batch_timer.notify(self.waiting)

    async def take_batches(self) -> None:
        while True:
            self.batch_timer.clear()
            if not await self.batch_timer.is_ready(self.waiting):
                continue
            if self.waiting:
                self.batch_timer.batch_taken()
                self.taken.append((round(self.loop.time() - self.began_s, 4), self.waiting))
                self.waiting = 0
                await asyncio.sleep(1.0)
            else:
                await self.batch_timer.wait()

    def __post_init__(self) -> None:
        self.began_s = self.loop.time()


def batches_of(
    scene: Callable[[Queue], Awaitable[None]], loops: int = 2
) -> list[tuple[float, int]]:
    async def main(loop: SimLoop) -> list[tuple[float, int]]:
        queue = Queue(loop)
        taking = [asyncio.ensure_future(queue.take_batches()) for _ in range(loops)]
        await scene(queue)
        await asyncio.sleep(0.5)
        for task in taking:
            task.cancel()
        return queue.taken

    return simulate(1, main).result()


def test_with_few_callers_a_request_is_taken_at_once() -> None:
    async def scene(queue: Queue) -> None:
        queue.batch_timer.callers = MANY_CALLERS - 1
        queue.arrive()
        await asyncio.sleep(0.001)

    assert batches_of(scene) == [(0.0, 1)]


def test_with_many_callers_a_batch_gathers_two_thirds_of_them() -> None:
    async def scene(queue: Queue) -> None:
        queue.batch_timer.callers = 90
        queue.arrive(59)
        await asyncio.sleep(0.003)
        queue.arrive()

    assert batches_of(scene) == [(0.003, 60)]


def test_a_large_batch_is_taken_at_once() -> None:
    async def scene(queue: Queue) -> None:
        queue.batch_timer.callers = 5_000
        queue.arrive(LARGE_BATCH)
        await asyncio.sleep(0.001)

    assert batches_of(scene) == [(0.0, LARGE_BATCH)]


def test_a_single_request_of_many_callers_is_taken_after_the_gather_time() -> None:
    async def scene(queue: Queue) -> None:
        queue.batch_timer.callers = 5_000  # The others wait for a system that is away.
        for _ in range(2):
            queue.arrive()
            await asyncio.sleep(0.1)

    assert batches_of(scene) == [(GATHER_S, 1), (round(0.1 + GATHER_S, 4), 1)]


def test_a_request_after_a_batch_was_taken_starts_a_new_gather_time() -> None:
    """The other loop was gathering, too: its own timeout ends soon after the batch was taken."""

    async def scene(queue: Queue) -> None:
        queue.batch_timer.callers = 100
        queue.arrive()
        await asyncio.sleep(0.005)
        queue.arrive(90)
        await asyncio.sleep(0.002)
        queue.arrive()
        await asyncio.sleep(0.1)

    assert batches_of(scene) == [(0.005, 91), (round(0.007 + GATHER_S, 4), 1)]


def test_a_request_that_arrives_while_all_loops_are_busy_is_taken_by_the_next_free_loop() -> None:
    async def scene(queue: Queue) -> None:
        queue.batch_timer.callers = 100
        for _ in range(3):
            queue.arrive(100)
            await asyncio.sleep(0.1)
        await asyncio.sleep(1.0)

    assert batches_of(scene) == [(0.0, 100), (0.1, 100), (1.0, 100)]
