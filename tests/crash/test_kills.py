"""SIGKILL of the worker and of the core, before and after each commit and each call.

Like the crash tests of SQLite: die at the first moment, then at the second, and so on until there
are no more. After each death the program is started again, the client repeats its requests with
the same cids, every transfer must end as expected, and the sums of both systems must be exact.
"""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from tests.conftest import SCHEMA
from tests.crash.scenes import endow, expected, held, parts, request_of, states
from tests.forked import Forked
from tidegate.app import Setup, open_gate
from tidegate.core.wire import CoreBook
from tidegate.engine.gate import Gate
from tidegate.engine.pending_request import Receipt
from tidegate.store.sessions import StoreLimits

KILLED = -signal.SIGKILL
ROUNDS = 2  # Rounds run in parallel. Each uses every second moment.
MAX_MOMENTS = 200
AHEAD = 12  # Scenes that are prepared together, because each preparation starts everything.
POLL_S, WORKER_S = 0.02, 90.0

pytestmark = pytest.mark.slow


@contextmanager
def core(directory: Path, moments: int = 0) -> Iterator[tuple[Forked, str]]:
    address = f"unix:{directory}/socket"
    child = Forked(["tests.crash.core", str(directory), address, str(moments)])
    try:
        assert child.stdout is not None
        child.stdout.readline()
        yield child, address
    finally:
        child.ended()


def gate(database: str, address: str) -> Setup:
    bounds = StoreLimits(lease_s=0.6, lock_s=2.0)
    return Setup(database, SCHEMA, address, bounds=bounds, scan_s=0.1, alert=lambda _: None)


async def prepare(setup: Setup, moment: int) -> None:
    """Prepare the scenes of this moment and of the next ones in its round."""
    async with open_gate(setup) as opened:
        for base in range(moment * 10, (moment + ROUNDS * AHEAD) * 10, ROUNDS * 10):
            await endow(opened, base)


async def check(opened: Gate, base: int, moment: int) -> None:
    assert await states(opened, base) == [part.state for part in parts(base)], f"moment {moment}"
    assert await held(opened, base) == expected(base), f"moment {moment}"


async def sums_agree(opened: Gate, owners: int) -> None:
    """The sum of all accounts of both systems must equal the deposits."""
    assert opened.core is not None
    [(inside, outside)] = await opened.store.run(
        "SELECT sum(available) FILTER (WHERE book <> 'OUTSIDE'),"
        " sum(available) FILTER (WHERE book = 'OUTSIDE') FROM ledger_accounts",
        {},
    )
    totals = (await opened.core.totals()).sums
    assert inside + totals[CoreBook.SPOT.name, 3] == -outside == owners * 1_500 * 10**6


def run_worker(database: str, address: str, base: int, moments: int) -> int:
    child = Forked(["tests.crash.worker", database, address, str(base), str(moments)])
    try:
        return child.wait(WORKER_S)
    finally:
        child.ended()


@pytest.mark.parametrize("first", range(1, ROUNDS + 1))
def test_a_worker_killed_at_any_moment_loses_nothing(
    database: str, tmp_path: Path, first: int
) -> None:
    with core(tmp_path) as (_, address):
        deaths, moment, scenes = 0, first, 0
        while moment < MAX_MOMENTS:
            base = moment * 10
            if deaths == scenes:
                asyncio.run(prepare(gate(database, address), moment))
                scenes += AHEAD
            code = run_worker(database, address, base, moment)
            deaths += code == KILLED
            assert code in (0, KILLED), f"moment {moment}: exit {code}"
            if code == KILLED:
                assert run_worker(database, address, base, 0) == 0, f"moment {moment}"
            asyncio.run(_checked(gate(database, address), base, moment))
            if code == 0:
                break
            moment += ROUNDS
        assert code == 0, "there are more moments than expected"
        assert deaths >= 15, f"only {deaths} moments: some moments may not reach the fuse"

        async def sum_up() -> None:
            async with open_gate(gate(database, address)) as opened:
                await sums_agree(opened, owners=3 * scenes)

        asyncio.run(sum_up())


async def _checked(setup: Setup, base: int, moment: int) -> None:
    async with open_gate(setup) as opened:
        await check(opened, base, moment)


@pytest.mark.parametrize("first", range(1, ROUNDS + 1))
def test_a_core_killed_at_any_moment_loses_nothing(
    database: str, tmp_path: Path, first: int
) -> None:
    deaths, moment = 0, first
    while moment < MAX_MOMENTS:
        base = moment * 10
        if deaths % AHEAD == 0:
            with core(tmp_path) as (_, address):
                asyncio.run(prepare(gate(database, address), moment))
        died = asyncio.run(_with_one_death(database, tmp_path, base, moment))
        deaths += died
        if not died:
            break
        moment += ROUNDS
    assert not died, "there are more moments than expected"
    assert deaths >= 10, f"only {deaths} moments: some moments may not reach the fuse"


async def _with_one_death(database: str, directory: Path, base: int, moment: int) -> bool:
    """Make six transfers while the core dies once and is restarted. The engine keeps running.

    One after the other: concurrent transfers share frames of the core's log, depending on how busy
    the machine is, and then the next run would have other moments than this one.
    """
    with core(directory, moment) as (fused, address):
        async with open_gate(gate(database, address)) as opened:
            making = asyncio.ensure_future(_make(opened, base))
            while not making.done() and fused.poll() is None:
                await asyncio.wait({making}, timeout=POLL_S)
            died = fused.poll() == KILLED
            with core(directory) if died else nullcontext():
                await making
                await check(opened, base, moment)
    return died


async def _make(opened: Gate, base: int) -> None:
    for number, part in enumerate(parts(base)):
        reply = await opened.engine.transfer(request_of(part, number), wait_s=30)
        assert isinstance(reply, Receipt), reply
