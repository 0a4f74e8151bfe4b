"""`python -m bench.scale`: how the cost of a transfer grows, and what does not grow at all."""

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import report
from bench.__main__ import ROOM, end_in_order, here
from bench.cases import BASE, SMALL
from bench.growth import backlog, fill
from bench.idle import idle_cpu_percent
from bench.memory import soak
from bench.replay import apply_per_s, replay_per_s
from bench.running import Extra, Run, Timing, run
from bench.world import World

MILLION = 1_000_000


class Sizes(NamedTuple):
    """How large the largest are: all of them, or small ones to try."""

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
    # By part: what is measured another day, on other code, must not take this one's name.
    found: dict[str, object] = {"measured": dict.fromkeys(chosen, here())}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with (
        Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as shown,
        World(ROOM) as world,
    ):
        task = shown.add_task("scale", total=len(chosen))
        for name in chosen:
            shown.update(task, description=f"scale  {name:12}")
            found[name] = PARTS[name](world, sizes, given.minutes)
            shown.advance(task)
    out = given.out or (report.RESULTS / "quick.json" if given.quick else report.LATEST)
    report.save(report.add_scale(report.load(out), found, ratios(found)), out)
    for name, value in found.items():
        sys.stdout.write(f"{name}: {value}\n")


def finished(world: World, sizes: Sizes, _: float) -> dict[str, object]:
    """Throughput on tables that hold so many ended transfers; rounds are interleaved."""
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
    """All transfers are of one owner, and so lock one account."""
    return _summary(world, sizes, 1)


def _summary(world: World, sizes: Sizes, count: int) -> dict[str, object]:
    case = BASE._replace(accounts=count)
    runs = [run(case, world, sizes.timing) for _ in range(sizes.rounds)]
    return report.summary(case, runs)


def drained(world: World, sizes: Sizes, _: float) -> dict[str, object]:
    return backlog(world, SMALL, sizes.backlog)


def replayed(world: World, sizes: Sizes, _: float) -> dict[str, object]:
    return {str(count): replay_per_s(world.directory, count) for count in sizes.records}


def applied(world: World, sizes: Sizes, _: float) -> dict[str, object]:
    return apply_per_s(world.directory, sizes.core_accounts, sizes.applied)


def memory(world: World, _: Sizes, minutes: float) -> dict[str, object]:
    return soak(world, SMALL, minutes)


def idle(world: World, sizes: Sizes, _: float) -> dict[str, object]:
    return {"percent": idle_cpu_percent(world.directory / "idle", sizes.idle_s)}


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
    """By their names; each is there only if its largest size was measured."""
    named: dict[str, float] = {}

    def at(*path: str) -> float | None:
        place: object = found
        for step in path:
            place = place.get(step) if isinstance(place, dict) else None
        return float(place) if isinstance(place, int | float) else None

    most, least = (at("finished", str(n), "per_s", "median") for n in (10 * MILLION, 10_000))
    if most and least:
        named["finished10m_over_10k"] = round(most / least, 3)
    for name, path in (
        ("core_apply_per_s", ("apply", "per_s")),
        ("core_replay_per_s", ("replay", str(10 * MILLION), "per_s")),
        ("idle_cpu_percent", ("idle", "percent")),
    ):
        if (value := at(*path)) is not None:
            named[name] = value
    if at("backlog", "transfers") == 100_000 and (value := at("backlog", "seconds")) is not None:
        named["backlog100k_s"] = value
    return named


if __name__ == "__main__":
    main()
