"""An idle Tidegate uses almost no CPU time."""

import os
import time
from pathlib import Path

import pytest

from tests.running import Up, running

pytestmark = pytest.mark.slow

SETTLE_S, MEASURED_S = 3.0, 35.0  # Longer than the pause between two audits.
MAX_SHARE = 0.03  # Of one CPU.


def cpu_s(up: Up) -> float:
    """The CPU time so far of the program and all its descendants."""
    ticks = 0
    for pid in (up.child.pid, *up.descendants()):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
        # The time of children that have ended, such as PostgreSQL's workers.
        ticks += int(fields[13]) + int(fields[14])
    return ticks / os.sysconf("SC_CLK_TCK")


def test_an_idle_tidegate_uses_less_than_three_percent_of_a_cpu(tmp_path: Path) -> None:
    with running(tmp_path / "all") as up:
        time.sleep(SETTLE_S)
        before_s, started_s = cpu_s(up), time.monotonic()
        time.sleep(MEASURED_S)
        share = (cpu_s(up) - before_s) / (time.monotonic() - started_s)
    assert share < MAX_SHARE, f"{share:.2%} of a CPU"
