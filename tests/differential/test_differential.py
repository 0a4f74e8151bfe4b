"""PostgreSQL and the twin return the same results and store the same rows."""

import asyncio
import itertools

import pytest

from tests.differential import Counts, RunOptions, run_differential
from tests.differential.scheduler import ALL, SeedActs, SeedRun, prepared_sides
from tidegate.flows import FLOWS

OPERATIONS = 10_000
CHUNKS = 5
SEEDS_APART = 10_000
OPERATION_NAMES = frozenset(
    {
        "ask",
        "ask allowance",
        "ask checks",
        "askable",
        "begin",
        "claim",
        "commit",
        "due",
        "find",
        "halt",
        "halted",
        "lock",
        "lock accounts",
        "lock allowance",
        "look",
        "reserve",
        "write",
        "release",
        "resume",
        "set status",
        "moved allowance",
        "moved checks",
    }
)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_the_twin_does_what_postgres_does(chunk: int, database: str) -> None:
    """Ten thousand operations in all; a difference raises Difference."""
    seeds = itertools.count(chunk * SEEDS_APART)
    counts = run_differential(seeds, database, RunOptions(OPERATIONS // CHUNKS))
    assert counts.operations >= OPERATIONS // CHUNKS
    assert min(counts.by_operation[name] for name in OPERATION_NAMES) >= 5, counts
    assert {end.split()[0] for end in counts.ends} == FLOWS.keys(), "a flow was never used"
    assert len(counts.ends) >= 6, counts.ends
    # The run proves little unless sessions wait for each other and are killed.
    assert counts.parked >= 20, counts
    assert counts.killed >= 10, counts
    assert counts.replies_lost >= 10, counts
    assert counts.comparisons >= counts.by_operation["commit"] // 2, counts


def test_a_seed_runs_the_same_every_time(database: str) -> None:
    async def run_twice() -> list[tuple[list[str], Counts]]:
        async with prepared_sides(database) as sides:
            runs = [SeedRun(sides, SeedActs(7, ALL[::3])) for _ in range(2)]
            return [(run.script, await run.run()) for run in runs]

    first, second = asyncio.run(run_twice())
    assert first == second
    assert first[1].operations > 10
