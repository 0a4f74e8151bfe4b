"""A rest ends when the bell rings or its own time is over, and by nothing else."""

import asyncio

from tidegate.engine.wakeup import Wakeup
from tidegate.simulation.loop import SimLoop, simulate


def test_a_rest_ends_at_its_own_time_or_with_the_bell() -> None:
    async def main(loop: SimLoop) -> list[tuple[str, float]]:
        bell, ended, began_s = Wakeup(), list[tuple[str, float]](), loop.time()

        async def rest(name: str, seconds: float) -> None:
            await bell.rest(seconds)
            ended.append((name, round(loop.time() - began_s, 3)))

        resting = asyncio.gather(rest("short", 1.0), rest("long", 60.0), rest("longer", 90.0))
        await asyncio.sleep(50.0)
        bell.ring()
        await resting
        return sorted(ended)

    assert simulate(1, main).result() == [("long", 50.0), ("longer", 50.0), ("short", 1.0)]


def test_who_comes_after_the_bell_has_rung_does_not_rest_until_it_is_silenced() -> None:
    async def main(loop: SimLoop) -> list[float]:
        bell, began_s, rested = Wakeup(), loop.time(), list[float]()
        bell.ring()
        for _ in range(2):
            await bell.rest(5.0)
            rested.append(round(loop.time() - began_s, 3))
        bell.silence()
        await bell.rest(5.0)
        return [*rested, round(loop.time() - began_s, 3)]

    assert simulate(1, main).result() == [0.0, 0.0, 5.0]


def test_a_rest_that_is_broken_off_leaves_nothing_behind() -> None:
    async def main(_: SimLoop) -> None:
        bell = Wakeup()
        resting = asyncio.ensure_future(bell.rest(5.0))
        await asyncio.sleep(1.0)
        resting.cancel()
        await asyncio.wait([resting])
        bell.ring()
        assert resting.cancelled()

    simulate(1, main).result()
