"""The CPU usage of an idle `tidegate up`."""

import subprocess
import sys
import time
from pathlib import Path

from bench.gauges import cpu_s

SETTLE_S, STOP_S = 5.0, 60.0


def idle_cpu_percents(directory: Path, watched_s: float, rounds: int) -> list[float]:
    """CPU usage in percent of one core: API, worker, trading core, PostgreSQL and the supervisor.

    One figure per round. A round lasts `watched_s`.
    """
    arguments = ["-m", "tidegate.cli", "up", "--bare", "--port", "0", "--data", str(directory)]
    with subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            if not child.stdout.readline().startswith("ready"):
                raise RuntimeError("`tidegate up` did not start; its message is above")
            time.sleep(SETTLE_S)
            return [_percent(child.pid, watched_s) for _ in range(rounds)]
        finally:
            child.terminate()
            child.wait(STOP_S)


def _percent(pid: int, watched_s: float) -> float:
    before_s, started_s = cpu_s(pid), time.monotonic()
    time.sleep(watched_s)
    used_s = cpu_s(pid) - before_s
    return round(100 * used_s / (time.monotonic() - started_s), 3)
