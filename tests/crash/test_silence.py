"""A core that is paused in the middle: nothing is decided, and all continues when it resumes."""

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

# Which part of the scene waits while the core is paused, and in which state.
WAITING = {"its source": (1, "SOURCE_PENDING"), "its target": (0, "TARGET_PENDING")}


async def submitted(opened: Gate, part: Part) -> Receipt:
    receipt = await opened.engine.submit(request_of(part, parts(BASE).index(part)))
    assert isinstance(receipt, Receipt)
    return receipt


@pytest.mark.parametrize("role", WAITING)
def test_while_the_core_is_paused_nothing_is_decided(
    database: str, tmp_path: Path, role: str
) -> None:
    number, state = WAITING[role]
    scene = parts(BASE)

    async def play_scene(opened: Gate, signal_core: Callable[[int], None]) -> None:
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
                await play_scene(opened, child.send_signal)

    asyncio.run(run())
