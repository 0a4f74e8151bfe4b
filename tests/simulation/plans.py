"""Exhaustive fault plans: every call with every fault, then every pair of such faults.

A plan is a list of faults, each at the index of a call. The calls of a run determine which faults
can follow the last one of its plan: so every fault is injected, and no plan is left out.
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
from tidegate.simulation.runs import trace_lines
from tidegate.simulation.scenario import LIVENESS_S, Scenario, run

SEED = 1
MAX_FAILURES = 20
CHUNK = 1_000
# The faults of worker calls that every test run combines in pairs: the call or its reply is lost,
# the effect comes late or twice, or the caller or the core dies before or after the effect.
USUAL = frozenset(
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
    """One plan and its results."""

    result: SeedResult
    calls: Sequence[str]
    ends: Sequence[str]  # The states of all transfers. A path has one.
    ended_s: float  # In virtual time, from the start.


def attempt(path: Path, faults: Faults = (), seed: int = SEED) -> Attempt:
    plan, scenes = FaultPlan(dict(faults)), list[Scenario]()

    def prepare(scene: Scenario) -> None:
        scenes.append(scene)
        path.prepare(scene)

    result = run(seed, plan, prepare, {path.flow: FLOWS[path.flow]})
    ends = [audited.transfer.state for audited in scenes[0].world.auditor.transfers.values()]
    faults_end = ("world", "faults end")
    faults_ended_s = (at for at, *event in result.trace if tuple(event) == faults_end)
    return Attempt(result, plan.calls, ends, next(faults_ended_s, float("inf")) - START_S)


def violation(path: Path, faults: Faults, tried: Attempt) -> str | None:
    """The violation in a plan, if any. No fault may change the end state of the transfer."""
    if tried.result.fault is not None:
        return f"{type(tried.result.fault).__name__}: {tried.result.fault}"
    if tried.result.faults != Counter((tried.calls[number], fault) for number, fault in faults):
        return f"other faults were injected: {dict(tried.result.faults)}"
    if tried.ends != [path.end]:
        return f"ended in {tried.ends} instead of {path.end}"
    if tried.ended_s > LIVENESS_S:
        return f"took {tried.ended_s:.1f} s"
    return None


def longer(faults: Faults, calls: Sequence[str], *, thorough: bool = False) -> Iterator[Faults]:
    """The plans with one more fault, after the last one.

    Unless `thorough` is set, only the usual faults of worker calls are combined. The rare ones and
    those of the core's disk occur alone. `make proof` is thorough.
    """
    all_faults = thorough or not faults
    if not all_faults and not all(is_usual(calls[number], fault) for number, fault in faults):
        return
    for number in range(faults[-1][0] + 1 if faults else 0, len(calls)):
        for fault in POINTS[calls[number]]:
            if all_faults or is_usual(calls[number], fault):
                yield (*faults, (number, fault))


def is_usual(point: str, fault: Fault) -> bool:
    return point in WORKER_POINTS and fault in USUAL


@dataclass
class Tally:
    """The sum of the results of some plans. Tallies can be merged."""

    plans: Counter[tuple[str, int]] = field(default_factory=Counter)  # By path and depth.
    injected: Counter[tuple[str, Fault]] = field(default_factory=Counter)
    called: set[str] = field(default_factory=set)
    failures: list[tuple[str, Faults, str]] = field(default_factory=list)
    violations: int = 0
    slowest_s: float = 0.0

    def add(self, path: Path, faults: Faults, tried: Attempt) -> None:
        self.plans[str(path), len(faults)] += 1
        self.injected.update(tried.result.faults)
        self.called.update(tried.calls)
        self.slowest_s = max(self.slowest_s, tried.ended_s)
        if (text := violation(path, faults, tried)) is not None:
            self.violations += 1
            self.failures = [*self.failures, (str(path), faults, text)][:MAX_FAILURES]

    def merge(self, other: "Tally") -> None:
        self.plans.update(other.plans)
        self.injected.update(other.injected)
        self.called |= other.called
        self.violations += other.violations
        self.slowest_s = max(self.slowest_s, other.slowest_s)
        self.failures = [*self.failures, *other.failures][:MAX_FAILURES]

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
    """A plan that was run, and how many plans extend it by one fault."""

    path: int
    faults: Faults
    width: int


def grow(branch: Branch, seed: int = SEED, *, thorough: bool = False) -> tuple[Tally, list[Branch]]:
    """Run all plans that extend this one by one fault."""
    tally, branches, path = Tally(), list[Branch](), PATHS[branch.path]
    calls = attempt(path, branch.faults, seed).calls
    for faults in longer(branch.faults, calls, thorough=thorough):
        tried = attempt(path, faults, seed)
        tally.add(path, faults, tried)
        width = sum(1 for _ in longer(faults, tried.calls, thorough=thorough))
        branches.append(Branch(branch.path, faults, width))
    return tally, branches


def root(number: int, seed: int = SEED) -> Branch:
    """The fault-free plan of a path."""
    tried = attempt(PATHS[number], (), seed)
    text = violation(PATHS[number], (), tried)
    assert text is None, f"{PATHS[number]} without faults: {text}"
    return Branch(number, (), sum(1 for _ in longer((), tried.calls)))


class PlanOptions(NamedTuple):
    """Which plans to run, and in how many processes."""

    depth: int = 2  # The number of faults in a plan.
    jobs: int = 1
    every: int = 1  # At the last depth, extend only every n-th plan.
    thorough: bool = False


Progress: TypeAlias = Callable[[int, int, int], None]  # The depth, plans done now, all plans.


def run_plans(options: PlanOptions, progress: Progress = lambda *_: None) -> Tally:
    """Run all plans of all paths with up to `depth` faults."""
    total, branches = Tally(), [root(number) for number in range(len(PATHS))]
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        for level in range(1, options.depth + 1):
            last = level == options.depth
            if last:
                branches = sorted(branches)[:: options.every]
            plans, next_branches = sum(branch.width for branch in branches), list[Branch]()
            progress(level, 0, plans)
            for tally, grown in grow_all(pool, branches, options.thorough):
                total.merge(tally)
                progress(level, tally.plans.total(), plans)
                next_branches += () if last else grown
            branches = next_branches
    return total


def grow_all(
    pool: ProcessPoolExecutor, branches: Sequence[Branch], thorough: bool
) -> Iterator[tuple[Tally, list[Branch]]]:
    """Grow the branches in any order, in chunks: the futures of a chunk stay in memory."""
    grow_one = partial(grow, thorough=thorough)
    for start in range(0, len(branches), CHUNK):
        chunk = branches[start : start + CHUNK]
        for done in as_completed([pool.submit(grow_one, branch) for branch in chunk]):
            yield done.result()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.plans", description=__doc__)
    parser.add_argument("--depth", type=int, default=2, help="the number of faults in a plan")
    parser.add_argument(
        "--every", type=int, default=1, help="extend only every n-th plan at the last depth"
    )
    parser.add_argument("--thorough", action="store_true", help="combine all faults at every depth")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    arguments = parser.parse_args()
    options = PlanOptions(arguments.depth, arguments.jobs, arguments.every, arguments.thorough)
    with bar() as shown:
        task = shown.add_task("planning", total=None)

        def progress(level: int, done: int, plans: int) -> None:
            if not done:
                text = f"{level} fault{'s' * (level > 1)} each"
                shown.update(task, description=text, completed=0, total=plans)
            shown.advance(task, done)

        tally = run_plans(options, progress)
    show(tally, as_json=arguments.output == "json")
    return 1 if tally.violations else 0


def show(tally: Tally, *, as_json: bool) -> None:
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
        print("\n".join(trace_lines(attempt(first, faults).result)))


if __name__ == "__main__":
    sys.exit(main())
