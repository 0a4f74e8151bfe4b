"""A core that falls silent in the middle: nothing is decided, and all goes on when it wakes."""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.scenes import Part, endow, expected, held, parts, request_of, states
from tests.crash.test_kills import core, gate
from tidegate.app import open_gate
from tidegate.engine.gate import CORE, Gate
from tidegate.engine.pending_request import Receipt

pytestmark = pytest.mark.slow

BASE = 10

# Which part of the scene waits while the core is silent, and in which state.
WAITING = {"its source": (1, "SOURCE_PENDING"), "its target": (0, "TARGET_PENDING")}


async def submitted(opened: Gate, part: Part) -> Receipt:
    said = await opened.engine.submit(request_of(part, parts(BASE).index(part)))
    assert isinstance(said, Receipt)
    return said


@pytest.mark.parametrize("role", WAITING)
def test_a_silent_core_decides_nothing(database: str, tmp_path: Path, role: str) -> None:
    number, state = WAITING[role]
    scene = parts(BASE)

    async def whole(opened: Gate, signal_core: Callable[[int], None]) -> None:
        await endow(opened, BASE)
        for part in scene[:number]:
            await opened.engine.wait((await submitted(opened, part)).transfer, 20)
        signal_core(signal.SIGSTOP)
        stuck = await submitted(opened, scene[number])
        for _ in range(600):
            if opened.engine.lanes[CORE].closed:
                break
            await asyncio.sleep(0.05)
        [found] = await opened.store.find([stuck.transfer.id])
        assert (found.state, found.lane) == (state, CORE)
        signal_core(signal.SIGCONT)
        end = await opened.engine.wait(stuck.transfer, 30)
        assert end.state == "COMMITTED"
        for part in scene[number + 1 :]:
            await opened.engine.wait((await submitted(opened, part)).transfer, 20)
        assert await states(opened, BASE) == [part.state for part in scene]
        assert await held(opened, BASE) == expected(BASE)

    async def run() -> None:
        with core(tmp_path) as (child, address):
            async with open_gate(gate(database, address)) as opened:
                await whole(opened, child.send_signal)

    asyncio.run(run())
