"""Everything that `tidegate up` runs is killed, stopped, cut off and starved under load."""

import asyncio

import pytest
from rich.progress import Progress

from tests.crash.faults import PATIENCE_S
from tests.crash.run import Plan, run

# All that runs whole houses goes to one worker, one after the other: two at once on two cores
# would try the machine, and not Tidegate.
pytestmark = pytest.mark.slow

KILLS, TRANSFERS, KINDS = 50, 2_000, 13


def test_fifty_faults_under_load_lose_nothing() -> None:
    said = asyncio.run(run(Plan(KILLS, TRANSFERS, seed=7), Progress(disable=True)))
    assert said["violations"] == [], said
    assert (said["kills"], len(said["kills_by_kind"])) == (KILLS, KINDS), said
    assert said["transfers"] >= TRANSFERS, said
    assert said["longest_wait_s"] <= PATIENCE_S, said
    assert min(said["ends"][state] for state in ("COMMITTED", "FAILED", "ROLLED_BACK")) > 0
