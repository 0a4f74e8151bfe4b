"""A wait ends when the wakeup is set or after its timeout."""

import asyncio

from tidegate.engine.wakeup import Wakeup
from tidegate.simulation.loop import SimLoop, simulate


def test_a_wait_ends_after_its_timeout_or_when_the_wakeup_is_set() -> None:
    async def main(loop: SimLoop) -> list[tuple[str, float]]:
        wakeup, ended, began_s = Wakeup(), list[tuple[str, float]](), loop.time()

        async def wait(name: str, seconds: float) -> None:
            await wakeup.wait(seconds)
            ended.append((name, round(loop.time() - began_s, 3)))

        waiting = asyncio.gather(wait("short", 1.0), wait("long", 60.0), wait("longer", 90.0))
        await asyncio.sleep(50.0)
        wakeup.set()
        await waiting
        return sorted(ended)

    assert simulate(1, main).result() == [("long", 50.0), ("longer", 50.0), ("short", 1.0)]


def test_a_wait_returns_at_once_while_the_wakeup_is_set() -> None:
    async def main(loop: SimLoop) -> list[float]:
        wakeup, began_s, waited_s = Wakeup(), loop.time(), list[float]()
        wakeup.set()
        for _ in range(2):
            await wakeup.wait(5.0)
            waited_s.append(round(loop.time() - began_s, 3))
        wakeup.clear()
        await wakeup.wait(5.0)
        return [*waited_s, round(loop.time() - began_s, 3)]

    assert simulate(1, main).result() == [0.0, 0.0, 5.0]


def test_a_cancelled_wait_leaves_nothing_behind() -> None:
    async def main(_: SimLoop) -> None:
        wakeup = Wakeup()
        waiting = asyncio.ensure_future(wakeup.wait(5.0))
        await asyncio.sleep(1.0)
        waiting.cancel()
        await asyncio.wait([waiting])
        wakeup.set()
        assert waiting.cancelled()

    simulate(1, main).result()
