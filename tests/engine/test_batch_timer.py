"""With few callers a batch leaves at once; with many it gathers, and never for longer than said."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tidegate.engine.batch_timer import LARGE, MANY, MOMENT_S, BatchTimer
from tidegate.simulation.loop import SimLoop, simulate


@dataclass
class Door:
    """Callers, some of whom arrive, and loops that take them away in batches."""

    loop: SimLoop
    gathering: BatchTimer = field(default_factory=BatchTimer)
    waiting: int = 0
    left: list[tuple[float, int]] = field(default_factory=list)  # When, and how many.

    def arrive(self, count: int = 1) -> None:
        for _ in range(count):
            self.waiting += 1
            self.gathering.arrived(self.waiting)

    async def take(self) -> None:
        while True:
            self.gathering.look()
            if not await self.gathering.gathered(self.waiting):
                continue
            if self.waiting:
                self.gathering.left()
                self.left.append((round(self.loop.time() - self.began_s, 4), self.waiting))
                self.waiting = 0
                await asyncio.sleep(1.0)
            else:
                await self.gathering.rest()

    def __post_init__(self) -> None:
        self.began_s = self.loop.time()


def played(scene: Callable[[Door], Awaitable[None]], loops: int = 2) -> list[tuple[float, int]]:
    async def main(loop: SimLoop) -> list[tuple[float, int]]:
        door = Door(loop)
        taking = [asyncio.ensure_future(door.take()) for _ in range(loops)]
        await scene(door)
        await asyncio.sleep(0.5)
        for task in taking:
            task.cancel()
        return door.left

    return simulate(1, main).result()


def test_few_callers_wait_for_nobody() -> None:
    async def scene(door: Door) -> None:
        door.gathering.callers = MANY - 1
        door.arrive()
        await asyncio.sleep(0.001)

    assert played(scene) == [(0.0, 1)]


def test_many_gather_until_they_are_two_thirds_of_all() -> None:
    async def scene(door: Door) -> None:
        door.gathering.callers = 90
        door.arrive(59)
        await asyncio.sleep(0.003)
        door.arrive()

    assert played(scene) == [(0.003, 60)]


def test_a_large_batch_waits_for_no_more() -> None:
    async def scene(door: Door) -> None:
        door.gathering.callers = 5_000
        door.arrive(LARGE)
        await asyncio.sleep(0.001)

    assert played(scene) == [(0.0, LARGE)]


def test_who_is_alone_among_many_goes_after_a_moment() -> None:
    async def scene(door: Door) -> None:
        door.gathering.callers = 5_000  # They wait for something that is out of order.
        for _ in range(2):
            door.arrive()
            await asyncio.sleep(0.1)

    assert played(scene) == [(MOMENT_S, 1), (round(0.1 + MOMENT_S, 4), 1)]


def test_who_comes_after_a_batch_has_left_gathers_anew() -> None:
    """The other loop has gathered, too, and its moment ends a moment after the batch has left."""

    async def scene(door: Door) -> None:
        door.gathering.callers = 100
        door.arrive()
        await asyncio.sleep(0.005)
        door.arrive(90)
        await asyncio.sleep(0.002)
        door.arrive()
        await asyncio.sleep(0.1)

    assert played(scene) == [(0.005, 91), (round(0.007 + MOMENT_S, 4), 1)]


def test_whoever_arrives_while_all_are_under_way_goes_when_one_is_back() -> None:
    async def scene(door: Door) -> None:
        door.gathering.callers = 100
        for _ in range(3):
            door.arrive(100)
            await asyncio.sleep(0.1)
        await asyncio.sleep(1.0)

    assert played(scene) == [(0.0, 100), (0.1, 100), (1.0, 100)]
