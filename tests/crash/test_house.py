"""Everything that `tidegate up` runs is killed, paused, disconnected and starved under load."""

import asyncio

import pytest
from rich.progress import Progress

from tests.crash.faults import TIMEOUT_S
from tests.crash.run import Plan, run

# Tests that run `tidegate up` run in one pytest worker, one after the other: two at once on two
# cores would test the machine, and not Tidegate.
pytestmark = pytest.mark.slow

KILLS, TRANSFERS, KINDS = 50, 2_000, 13


def test_fifty_faults_under_load_lose_nothing() -> None:
    figures = asyncio.run(run(Plan(KILLS, TRANSFERS, seed=7), Progress(disable=True)))
    assert figures["violations"] == [], figures
    assert (figures["kills"], len(figures["kills_by_kind"])) == (KILLS, KINDS), figures
    assert figures["transfers"] >= TRANSFERS, figures
    assert figures["longest_wait_s"] <= TIMEOUT_S, figures
    assert min(figures["ends"][state] for state in ("COMMITTED", "FAILED", "ROLLED_BACK")) > 0
