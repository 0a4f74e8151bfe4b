"""The loop: virtual time, an order determined by the seed, and killed processes that never run."""

import asyncio
from contextvars import Context

import pytest

from tidegate.simulation.loop import START_S, SimLoop, simulate


def test_an_hour_of_sleep_advances_the_clock_by_an_hour_and_takes_no_time() -> None:
    async def main(loop: SimLoop) -> float:
        await asyncio.sleep(3600)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await asyncio.Event().wait()
        return loop.time()

    assert simulate(1, main).result() == pytest.approx(START_S + 3660)


def order(seed: int) -> list[int]:
    seen: list[int] = []

    async def note(number: int) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
            seen.append(number)

    async def main(_: SimLoop) -> None:
        await asyncio.gather(*map(note, range(5)))

    simulate(seed, main).result()
    return seen


def test_a_seed_determines_the_order() -> None:
    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(10)}) > 5
    assert all(sorted(order(seed)) == sorted(order(0)) for seed in range(10))


def test_a_killed_process_runs_nothing_any_more_not_even_its_finally() -> None:
    events: list[str] = []

    async def victim() -> None:
        try:
            async with asyncio.timeout(100):
                while True:
                    await asyncio.sleep(1)
                    events.append("alive")
        finally:
            events.append("finally")

    async def main(loop: SimLoop) -> list[str]:
        context = Context()
        loop.create_task(victim(), context=context)
        await asyncio.sleep(2.5)
        loop.kill(context)
        await asyncio.sleep(200)
        return list(events)

    assert simulate(1, main).result() == ["alive", "alive"]


def test_child_tasks_of_a_killed_process_die_and_others_live() -> None:
    events: list[str] = []

    async def child(name: str) -> None:
        await asyncio.sleep(5)
        events.append(name)

    async def parent(name: str) -> None:
        await asyncio.gather(child(name), asyncio.create_task(child(name)))

    async def main(loop: SimLoop) -> list[str]:
        doomed = Context()
        loop.create_task(parent("doomed"), context=doomed)
        loop.create_task(parent("other"), context=Context())
        await asyncio.sleep(1)
        loop.kill(doomed)
        await asyncio.sleep(10)
        return list(events)

    assert simulate(3, main).result() == ["other", "other"]


def test_waiting_without_a_timer_is_reported_as_a_deadlock() -> None:
    async def main(_: SimLoop) -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="deadlock"):
        simulate(1, main)
