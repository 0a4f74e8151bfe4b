"""`python -m bench.scale`: the cost of a transfer with large tables, backlogs and long loads."""

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import machine, report
from bench.__main__ import ROOM, end_in_order, here
from bench.cases import BASE, SMALL
from bench.growth import backlog, fill
from bench.idle import idle_cpu_percents
from bench.memory import soak
from bench.replay import apply_per_s, replay_per_s
from bench.running import Extra, Run, Timing, run
from bench.world import World

MILLION = 1_000_000
MOST_FINISHED = MOST_RECORDS = str(10 * MILLION)


class Sizes(NamedTuple):
    """The sizes of the measurements: large, or small for a trial."""

    finished: tuple[int, ...] = (10_000, 100_000, MILLION, 10 * MILLION)
    accounts: tuple[int, ...] = (1_000, 10_000, 100_000, MILLION)
    backlog: int = 100_000
    records: tuple[int, ...] = (MILLION, 10 * MILLION)
    applied: int = 2 * MILLION
    core_accounts: int = MILLION
    rounds: int = 3
    timing: Timing = Timing(8.0, 2.0)
    idle_s: float = 35.0


QUICK = Sizes(
    (1_000, 20_000), (1_000, 10_000), 2_000, (50_000,), 50_000, 10_000, 1, Timing(1.0, 0.5), 5.0
)


def main() -> None:
    end_in_order()
    words = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    words.add_argument("--quick", action="store_true", help="small sizes: to try")
    words.add_argument("--only", action="append", default=[], choices=list(PARTS))
    words.add_argument("--minutes", type=float, default=10.0, help="how long memory is watched")
    words.add_argument("--out", type=Path, help="results/latest.json, if not given and not quick")
    given = words.parse_args()
    sizes = QUICK if given.quick else Sizes()
    chosen = [name for name in PARTS if not given.only or name in given.only]
    # The conditions are recorded per part, as parts may be measured on other days and code.
    speeds: dict[str, object] = {}
    found: dict[str, object] = {"measured": dict.fromkeys(chosen, here()), "machine_speed": speeds}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with (
        Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as shown,
        World(ROOM) as world,
    ):
        task = shown.add_task("scale", total=len(chosen))
        for name in chosen:
            shown.update(task, description=f"scale  {name:12}")
            speeds[name] = machine.speed(world.connection).rounded()
            found[name] = PARTS[name](world, sizes, given.minutes)
            shown.advance(task)
    out = given.out or (report.RESULTS / "quick.json" if given.quick else report.LATEST)
    report.save(report.add_scale(report.load(out), found, ratios(found), rounds(found)), out)
    for name, value in found.items():
        sys.stdout.write(f"{name}: {value}\n")


def finished(world: World, sizes: Sizes, _: float) -> dict[str, object]:
    """Throughput by the number of ended transfers in the tables, in interleaved rounds."""
    bases = {count: fill(world, SMALL, count) for count in sizes.finished}
    runs: dict[int, list[Run]] = {count: [] for count in bases}
    for _round in range(sizes.rounds):
        for count, base in bases.items():
            runs[count].append(run(BASE, world, sizes.timing, Extra(base=base)))
    for base in bases.values():
        world.forget(base)
    return {str(count): report.summary(BASE, each) for count, each in runs.items()}


def accounts(world: World, sizes: Sizes, _: float) -> dict[str, object]:
    return {str(count): _summary(world, sizes, count) for count in sizes.accounts}


def hot(world: World, sizes: Sizes, _: float) -> dict[str, object]:
    """All transfers are of one owner, so that they lock the same account."""
    return _summary(world, sizes, 1)


def _summary(world: World, sizes: Sizes, count: int) -> dict[str, object]:
    case = BASE._replace(accounts=count)
    runs = [run(case, world, sizes.timing) for _ in range(sizes.rounds)]
    return report.summary(case, runs)


def drained(world: World, sizes: Sizes, _: float) -> dict[str, object]:
    seconds = [backlog(world, SMALL, sizes.backlog) for _ in range(sizes.rounds)]
    median = statistics.median(seconds)
    per_s = round(sizes.backlog / median)
    return {"transfers": sizes.backlog, "seconds": median, "per_s": per_s, "rounds": seconds}


def replayed(world: World, sizes: Sizes, _: float) -> dict[str, object]:
    return {str(count): replay_per_s(world.directory, count) for count in sizes.records}


def applied(world: World, sizes: Sizes, _: float) -> dict[str, object]:
    accounts, records = sizes.core_accounts, sizes.applied
    each = [apply_per_s(world.directory, accounts, records) for _ in range(sizes.rounds)]
    median = statistics.median(each)
    return {"accounts": accounts, "records": records, "per_s": median, "rounds": each}


def memory(world: World, _: Sizes, minutes: float) -> dict[str, object]:
    return soak(world, SMALL, minutes)


def idle(world: World, sizes: Sizes, _: float) -> dict[str, object]:
    each = idle_cpu_percents(world.directory / "idle", sizes.idle_s, sizes.rounds)
    return {"percent": statistics.median(each), "rounds": each}


PARTS: dict[str, Callable[[World, Sizes, float], dict[str, object]]] = {
    "finished": finished,
    "accounts": accounts,
    "hot": hot,
    "backlog": drained,
    "replay": replayed,
    "apply": applied,
    "idle": idle,
    "memory": memory,
}


def ratios(found: Mapping[str, object]) -> dict[str, float]:
    """The ratios by name. A ratio exists only if its largest size was measured."""
    named: dict[str, float] = {}

    def at(*path: str) -> float | None:
        value = _at(found, *path)
        return float(value) if isinstance(value, int | float) else None

    most, least = (at("finished", n, "per_s", "median") for n in (MOST_FINISHED, "10000"))
    if most and least:
        named["finished10m_over_10k"] = round(most / least, 3)
    for name, path in (
        ("core_apply_per_s", ("apply", "per_s")),
        ("core_replay_per_s", ("replay", MOST_RECORDS, "per_s")),
        ("idle_cpu_percent", ("idle", "percent")),
    ):
        if (value := at(*path)) is not None:
            named[name] = value
    if at("backlog", "transfers") == 100_000 and (value := at("backlog", "seconds")) is not None:
        named["backlog100k_s"] = value
    return named


def rounds(found: Mapping[str, object]) -> dict[str, list[float]]:
    """The ratios of every round, where there were several."""

    def at(*path: str) -> list[float]:
        value = _at(found, *path)
        return value if isinstance(value, list) else []

    most, least = (at("finished", n, "per_s", "rounds") for n in (MOST_FINISHED, "10000"))
    each: dict[str, list[float]] = {
        "finished10m_over_10k": [round(a / b, 3) for a, b in zip(most, least, strict=False)],
        "core_apply_per_s": at("apply", "rounds"),
        "core_replay_per_s": [
            round(10 * MILLION / seconds) for seconds in at("replay", MOST_RECORDS, "seconds")
        ],
        "idle_cpu_percent": at("idle", "rounds"),
        "backlog100k_s": at("backlog", "rounds"),
    }
    measured = ratios(found)
    return {name: values for name, values in each.items() if values and name in measured}


def _at(found: Mapping[str, object], *path: str) -> object:
    value: object = found
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


if __name__ == "__main__":
    main()
