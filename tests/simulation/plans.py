"""Every call of a transfer fails in every way it can; then, after each, every call once more.

A plan is a list of faults, each at the number of a call. The calls of a run say which faults can
be added behind its last one, so that no plan misses and none is left out.
"""

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from typing import NamedTuple, TypeAlias

from tests.simulation.paths import PATHS, Path
from tidegate.commands.progress import bar
from tidegate.flows import FLOWS
from tidegate.simulation.faults import POINTS, WORKER_POINTS, Fault, FaultPlan
from tidegate.simulation.loop import START_S
from tidegate.simulation.result import SeedResult
from tidegate.simulation.runs import told
from tidegate.simulation.scenario import LIVENESS_S, Scenario, run

SEED = 1
MAX_TOLD = 20
SLAB = 1_000
# What every call of a worker suffers twice in every run of the tests: it is lost, or its reply is;
# it lands late, or twice; and who asks or who is asked dies, before it is done or after.
TWICE = frozenset(
    {
        Fault.KILLED_BEFORE,
        Fault.KILLED_AFTER,
        Fault.CORE_KILLED,
        Fault.LOST,
        Fault.REPLY_LOST,
        Fault.LATE,
        Fault.KILLED_LATE,
        Fault.DELAYED,
        Fault.REPEATED,
    }
)

Faults: TypeAlias = tuple[tuple[int, Fault], ...]


class Attempt(NamedTuple):
    """One plan carried out."""

    result: SeedResult
    calls: Sequence[str]
    ends: Sequence[str]  # The states of all transfers: of one, that is.
    ended_s: float  # In virtual time, from the beginning.


def attempt(path: Path, faults: Faults = (), seed: int = SEED) -> Attempt:
    plan, scenes = FaultPlan(dict(faults)), list[Scenario]()

    def prepare(scene: Scenario) -> None:
        scenes.append(scene)
        path.prepare(scene)

    result = run(seed, plan, prepare, {path.flow: FLOWS[path.flow]})
    ends = [life.transfer.state for life in scenes[0].world.auditor.lives.values()]
    healed_s = (at for at, who, what in result.trace if (who, what) == ("world", "heals"))
    return Attempt(result, plan.calls, ends, next(healed_s, float("inf")) - START_S)


def wrong(path: Path, faults: Faults, tried: Attempt) -> str | None:
    """What a plan came to that it must not. Nothing that fails changes where a transfer ends."""
    if tried.result.fault is not None:
        return f"{type(tried.result.fault).__name__}: {tried.result.fault}"
    if tried.result.faults != Counter((tried.calls[number], fault) for number, fault in faults):
        return f"other faults struck: {dict(tried.result.faults)}"
    if tried.ends != [path.end]:
        return f"ended in {tried.ends} instead of {path.end}"
    if tried.ended_s > LIVENESS_S:
        return f"took {tried.ended_s:.1f} s"
    return None


def longer(faults: Faults, calls: Sequence[str], *, thorough: bool = False) -> Iterator[Faults]:
    """The plans with one more fault, behind the last.

    Unless it is to be thorough, the rarer ways to fail come alone, and so does what the core's disk
    does. `make proof` is thorough.
    """
    every = thorough or not faults
    if not every and not all(is_usual(calls[number], fault) for number, fault in faults):
        return
    for number in range(faults[-1][0] + 1 if faults else 0, len(calls)):
        for fault in POINTS[calls[number]]:
            if every or is_usual(calls[number], fault):
                yield (*faults, (number, fault))


def is_usual(point: str, fault: Fault) -> bool:
    return point in WORKER_POINTS and fault in TWICE


@dataclass
class Tally:
    """What some plans came to. Two of them add up to one."""

    plans: Counter[tuple[str, int]] = field(default_factory=Counter)  # By path and depth.
    struck: Counter[tuple[str, Fault]] = field(default_factory=Counter)
    called: set[str] = field(default_factory=set)
    failures: list[tuple[str, Faults, str]] = field(default_factory=list)
    violations: int = 0
    slowest_s: float = 0.0

    def take(self, path: Path, faults: Faults, tried: Attempt) -> None:
        self.plans[str(path), len(faults)] += 1
        self.struck.update(tried.result.faults)
        self.called.update(tried.calls)
        self.slowest_s = max(self.slowest_s, tried.ended_s)
        if (text := wrong(path, faults, tried)) is not None:
            self.violations += 1
            self.failures = [*self.failures, (str(path), faults, text)][:MAX_TOLD]

    def merge(self, other: "Tally") -> None:
        self.plans.update(other.plans)
        self.struck.update(other.struck)
        self.called |= other.called
        self.violations += other.violations
        self.slowest_s = max(self.slowest_s, other.slowest_s)
        self.failures = [*self.failures, *other.failures][:MAX_TOLD]

    def figures(self) -> dict[str, object]:
        by_path: dict[str, dict[str, int]] = {}
        for (path, depth), count in sorted(self.plans.items()):
            by_path.setdefault(path, {})[f"depth {depth}"] = count
        return {
            "plans": self.plans.total(),
            "violations": self.violations,
            "slowest_s": round(self.slowest_s, 1),
            "paths": by_path,
        }


class Branch(NamedTuple):
    """A plan that was carried out, and how many there are with one more fault."""

    path: int
    faults: Faults
    width: int


def grow(branch: Branch, seed: int = SEED, *, thorough: bool = False) -> tuple[Tally, list[Branch]]:
    """Carry out all plans with one fault more than this one."""
    tally, found, path = Tally(), list[Branch](), PATHS[branch.path]
    calls = attempt(path, branch.faults, seed).calls
    for faults in longer(branch.faults, calls, thorough=thorough):
        tried = attempt(path, faults, seed)
        tally.take(path, faults, tried)
        width = sum(1 for _ in longer(faults, tried.calls, thorough=thorough))
        found.append(Branch(branch.path, faults, width))
    return tally, found


def root(number: int, seed: int = SEED) -> Branch:
    """A path on which nothing fails."""
    tried = attempt(PATHS[number], (), seed)
    text = wrong(PATHS[number], (), tried)
    assert text is None, f"{PATHS[number]}, although nothing failed: {text}"
    return Branch(number, (), sum(1 for _ in longer((), tried.calls)))


class Wanted(NamedTuple):
    """How far to go."""

    depth: int = 2  # So many faults in one plan.
    jobs: int = 1
    every: int = 1  # At the last depth, only of each so-many-th plan that can be made longer.
    thorough: bool = False


Watch: TypeAlias = Callable[[int, int, int], None]  # The depth, plans more, plans in all.


def run_plans(wanted: Wanted, watch: Watch = lambda *_: None) -> Tally:
    """All plans of all paths with up to so many faults."""
    total, branches = Tally(), [root(number) for number in range(len(PATHS))]
    with ProcessPoolExecutor(wanted.jobs, get_context("spawn")) as pool:
        for level in range(1, wanted.depth + 1):
            last = level == wanted.depth
            if last:
                branches = sorted(branches)[:: wanted.every]
            plans, found = sum(branch.width for branch in branches), list[Branch]()
            watch(level, 0, plans)
            for tally, grown in grown_by(pool, branches, wanted.thorough):
                total.merge(tally)
                watch(level, tally.plans.total(), plans)
                found += () if last else grown
            branches = found
    return total


def grown_by(
    pool: ProcessPoolExecutor, branches: Sequence[Branch], thorough: bool
) -> Iterator[tuple[Tally, list[Branch]]]:
    """In no order. Some at a time, because what is done is kept until all of them are."""
    further = partial(grow, thorough=thorough)
    for start in range(0, len(branches), SLAB):
        some = branches[start : start + SLAB]
        for done in as_completed([pool.submit(further, branch) for branch in some]):
            yield done.result()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.plans", description=__doc__)
    parser.add_argument("--depth", type=int, default=2, help="so many faults in one plan")
    parser.add_argument("--every", type=int, default=1, help="a part of the last depth only")
    parser.add_argument("--thorough", action="store_true", help="leave out nothing at any depth")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    chosen = parser.parse_args()
    wanted = Wanted(chosen.depth, chosen.jobs, chosen.every, chosen.thorough)
    with bar() as shown:
        task = shown.add_task("planning", total=None)

        def watch(level: int, more: int, plans: int) -> None:
            if not more:
                text = f"{level} fault{'s' * (level > 1)} each"
                shown.update(task, description=text, completed=0, total=plans)
            shown.advance(task, more)

        tally = run_plans(wanted, watch)
    tell(tally, as_json=chosen.output == "json")
    return 1 if tally.violations else 0


def tell(tally: Tally, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(tally.figures(), indent=2))
        return
    for (path, depth), count in sorted(tally.plans.items()):
        print(f"{path:<72} depth {depth} {count:>9}")
    print(f"{tally.plans.total()} plans, {tally.violations} violations")
    for path, faults, text in tally.failures:
        print(f"{path} {list(map(str, faults))}: {text}")
    if tally.failures:
        name, faults, _ = tally.failures[0]
        [first] = [path for path in PATHS if str(path) == name]
        print("\n".join(told(attempt(first, faults).result)))


if __name__ == "__main__":
    sys.exit(main())
