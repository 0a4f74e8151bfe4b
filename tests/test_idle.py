"""A Tidegate with nothing to do does next to nothing."""

import os
import time
from pathlib import Path

import pytest

from tests.running import Up, running

pytestmark = pytest.mark.slow

SETTLE_S, WATCHED_S = 3.0, 35.0  # Longer than the pause between two audits.
MOST = 0.03  # Of one core.


def cpu_s(up: Up) -> float:
    """All that was used so far by the program, by its children and by theirs."""
    ticks = 0
    for pid in (up.child.pid, *up.descendants()):
        used = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(used[11]) + int(used[12])
        # Of children that have ended, such as PostgreSQL's own workers.
        ticks += int(used[13]) + int(used[14])
    return ticks / os.sysconf("SC_CLK_TCK")


def test_an_idle_tidegate_uses_less_than_three_percent_of_a_core(tmp_path: Path) -> None:
    with running(tmp_path / "all") as up:
        time.sleep(SETTLE_S)
        before_s, began_s = cpu_s(up), time.monotonic()
        time.sleep(WATCHED_S)
        share = (cpu_s(up) - before_s) / (time.monotonic() - began_s)
    assert share < MOST, f"{share:.2%} of a core"
