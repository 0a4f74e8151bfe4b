"""pgbench's own TPC-B: five statements and a commit on one database. No transfer between two."""

import asyncio
import re
from pathlib import Path

from bench.driving import quantile, say
from bench.spec import Result, Spec

SAMPLE = 0.2  # Of the transactions, whose times are written down.


async def pgbench(spec: Spec, seconds: float, *more: str) -> str:
    command = [f"{spec.programs}/pgbench", "--no-vacuum", "--jobs=2", f"--client={spec.inflight}"]
    command += [f"--time={max(round(seconds), 1)}", *more, spec.database]
    child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    said, _ = await child.communicate()
    if child.returncode:
        raise RuntimeError(f"pgbench ended with {child.returncode}")
    return said.decode()


async def run(spec: Spec) -> Result:
    warmed = int(said_number("transactions actually processed: ", await pgbench(spec, spec.warm_s)))
    say("open")
    logged = ("--log", f"--sampling-rate={SAMPLE}", "--log-prefix=tpcb")
    said = await pgbench(spec, spec.seconds, *logged)
    say("closed")
    times = sampled_ms()
    seconds = float(max(round(spec.seconds), 1))
    counted = round(said_number("tps = ", said) * seconds)
    return Result(
        counted=counted,
        seconds=seconds,
        made=counted + warmed,
        p50_ms=quantile(times, 0.50),
        p95_ms=quantile(times, 0.95),
        p99_ms=quantile(times, 0.99),
        max_ms=times[-1],
    )


def said_number(before: str, said: str) -> float:
    found = re.search(re.escape(before) + r"([\d.]+)", said)
    assert found is not None, said
    return float(found[1])


def sampled_ms() -> list[float]:
    lines = [line for log in Path().glob("tpcb.*") for line in log.read_text().splitlines()]
    return sorted(int(line.split()[2]) / 1000 for line in lines) or [0.0]
