"""Memory usage under a long load: whether it grows, and by how much per transfer."""

import threading
import time
from collections.abc import Mapping

from bench.cases import BASE
from bench.gauges import memory_of
from bench.running import Extra, Timing, run
from bench.world import World

SAMPLES = 20


def soak(world: World, accounts: int, minutes: float) -> dict[str, object]:
    """Run the base case for some minutes, and sample the memory of every role regularly."""
    timing = Timing(seconds=minutes * 60, warm_s=2.0)
    samples: list[dict[str, float]] = []
    over = threading.Event()

    def watch(roles: Mapping[str, int]) -> None:
        started_s = time.monotonic()

        def sample() -> None:
            while not over.wait(timing.seconds / SAMPLES):
                at_s = round(time.monotonic() - started_s, 1)
                if at_s < timing.seconds:  # After that the processes may have ended.
                    samples.append({"at_s": at_s, **memory_of(roles)})

        threading.Thread(target=sample, daemon=True).start()

    try:
        done = run(BASE._replace(accounts=accounts), world, timing, Extra(watch=watch))
    finally:
        over.set()
    return {"minutes": minutes, "transfers": done.result.made, "samples": samples}
