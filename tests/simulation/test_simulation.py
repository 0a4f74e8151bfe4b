"""No seed can lose or make money: the real engine and core among failures, in virtual time."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

from tidegate.simulation.people import TRANSFERS
from tidegate.simulation.runs import ENOUGH, Tally, run_chunk
from tidegate.simulation.scenario import LIVENESS_S, run

SEEDS = 5_000
SHARES = 2  # As many as there are cores to run them at the same time.
FAST = range(SEEDS, SEEDS + 200)  # In `make check` as well.

HASHED = (*range(20), *range(130, 160))  # Among them one that once woke lanes in a set's order.
HASHES = f"""
from tidegate.simulation.scenario import run
print("".join(run(seed).hash() for seed in {HASHED}))
"""


def tried(seeds: Sequence[int]) -> Tally:
    tally = run_chunk(seeds)
    told = [f"tidegate simulate --seed {seed}: {text}" for seed, text in tally.failures]
    assert not told, "\n".join(told)
    assert tally.seeds == len(seeds)
    assert tally.liveness_s <= LIVENESS_S
    return tally


def test_no_seed_loses_or_makes_money() -> None:
    tally = tried(FAST)
    assert tally.transfers == len(FAST) * TRANSFERS
    assert tally.twice == len(FAST) // 100


@pytest.mark.slow
@pytest.mark.parametrize("share", range(SHARES))
def test_five_thousand_seeds_with_every_edge_and_every_fault(share: int) -> None:
    """Each share alone contains its part of the hundred times that are promised for all."""
    tally = tried(range(share, SEEDS, SHARES))
    assert tally.rare(ENOUGH // SHARES) == {}
    assert tally.transfers == SEEDS // SHARES * TRANSFERS


def test_the_same_seed_is_the_same_run_whatever_python_hashes_by() -> None:
    ours = "".join(run(seed).hash() for seed in HASHED)
    for hash_seed in ("1", "2", "77"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", HASHES]
        said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert said.stdout.strip() == ours, f"PYTHONHASHSEED={hash_seed}"


def test_another_seed_is_another_run() -> None:
    assert len({run(seed).hash() for seed in range(20)}) == 20
    assert len(run(0).hash()) == hashlib.sha256().digest_size * 2
