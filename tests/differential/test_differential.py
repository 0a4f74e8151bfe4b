"""PostgreSQL and the twin are told apart by nothing that either returns or keeps."""

import asyncio
import itertools

import pytest

from tests.differential import Counts, Wish, run_differential
from tests.differential.scheduler import ALL, Part, Stage, opened
from tidegate.flows import FLOWS

OPERATIONS = 10_000
CHUNKS = 5
SEEDS_APART = 10_000
OPERATED = frozenset(
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
        "tell allowance",
        "tell checks",
    }
)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_the_twin_does_what_postgres_does(chunk: int, database: str) -> None:
    """Ten thousand operations in all; a difference would have been raised."""
    seeds = itertools.count(chunk * SEEDS_APART)
    counts = run_differential(seeds, database, Wish(OPERATIONS // CHUNKS))
    assert counts.operations >= OPERATIONS // CHUNKS
    assert min(counts.by_operation[name] for name in OPERATED) >= 5, counts
    assert {end.split()[0] for end in counts.ends} == FLOWS.keys(), "a flow takes no part"
    assert len(counts.ends) >= 6, counts.ends
    # It would prove little if nobody ever stood in another's way or died.
    assert counts.parked >= 20, counts
    assert counts.killed >= 10, counts
    assert counts.replies_lost >= 10, counts
    assert counts.comparisons >= counts.by_operation["commit"] // 2, counts


def test_a_seed_is_the_same_play_every_time(database: str) -> None:
    async def twice() -> list[tuple[list[str], Counts]]:
        async with opened(database) as house:
            stages = [Stage(house, Part(7, ALL[::3])) for _ in range(2)]
            return [(stage.script, await stage.run()) for stage in stages]

    first, second = asyncio.run(twice())
    assert first == second
    assert first[1].operations > 10
