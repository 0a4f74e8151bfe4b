"""Runs many seeds in several processes, and adds up their results."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context

from tidegate.app import collect_garbage_less_often
from tidegate.core.flow import Edge, Flow
from tidegate.engine.kind_rules import KindRules, RulesOf
from tidegate.flows import FLOWS
from tidegate.simulation.effects import plain, reachable
from tidegate.simulation.faults import KINDS, Fault
from tidegate.simulation.loop import START_S
from tidegate.simulation.result import SeedResult
from tidegate.simulation.scenario import REQUIRED_EVENTS, run

CHUNK = 25
REPEAT_EVERY = 100  # Every seed that this divides is run twice, and must run the same way.
MAX_FAILURES = 100
ENOUGH = 100  # How often each edge and each fault must happen in a long run.


@dataclass
class Tally:
    """The sum of the results of some seeds. Tallies can be merged."""

    seeds: int = 0
    transfers: int = 0
    refused: int = 0
    edges: Counter[tuple[str, Edge]] = field(default_factory=Counter)
    faults: Counter[tuple[str, Fault]] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    liveness_s: float = 0.0  # The longest time of any seed from the end of faults to its end.
    twice: int = 0  # Seeds that were run twice.
    cpu_s: float = 0.0
    failures: list[tuple[int, str]] = field(default_factory=list)  # Seed and violation.

    def add(self, result: SeedResult) -> None:
        self.seeds += 1
        self.transfers += result.transfers
        self.refused += result.refused
        self.edges.update(result.edges)
        self.faults.update(result.faults)
        self.events.update(result.events)
        self.liveness_s = max(self.liveness_s, result.liveness_s)
        if result.fault is not None:
            self.fail(result.seed, f"{type(result.fault).__name__}: {result.fault}")

    def fail(self, seed: int, text: str) -> None:
        self.failures = sorted([*self.failures, (seed, text)])[:MAX_FAILURES]

    def merge(self, other: "Tally") -> None:
        self.seeds += other.seeds
        self.transfers += other.transfers
        self.refused += other.refused
        self.edges.update(other.edges)
        self.faults.update(other.faults)
        self.events.update(other.events)
        self.liveness_s = max(self.liveness_s, other.liveness_s)
        self.twice += other.twice
        self.cpu_s += other.cpu_s
        for seed, text in other.failures:
            self.fail(seed, text)

    @property
    def seeds_per_second_per_core(self) -> float:
        return self.seeds / self.cpu_s if self.cpu_s else 0.0

    def rare(self, enough: int = ENOUGH) -> dict[str, int]:
        """The edges, faults and events that happened less often than this."""
        counts = self.edge_counts()
        counts |= {f"{point} {fault}": self.faults[point, fault] for point, fault in KINDS}
        counts |= {name: self.events[name] for name in REQUIRED_EVENTS}
        return {name: times for name, times in counts.items() if times < enough}

    def edge_counts(self) -> dict[str, int]:
        """How often each edge of each flow was taken."""
        return {
            f"{flow.name} {'>'.join(edge.path)} {edge.answer}": self.edges[flow.name, plain(edge)]
            for flow in FLOWS.values()
            for edge in reachable(flow)
        }

    def figures(self) -> dict[str, object]:
        """The figures as JSON, for programs and for docs/proof.md."""
        return {
            "seeds": self.seeds,
            "transfers": self.transfers,
            "refused": self.refused,
            "violations": len(self.failures),
            "failing_seeds": [seed for seed, _ in self.failures],
            "run_twice": self.twice,
            "edges": sum(self.edges.values()),
            "faults": sum(self.faults.values()),
            "worst_liveness_s": round(self.liveness_s, 3),
            "seeds_per_second_per_core": round(self.seeds_per_second_per_core, 1),
            "edges_below_100": sum(times < ENOUGH for times in self.edge_counts().values()),
            "below_100": self.rare(),
        }


def shared_rules() -> RulesOf:
    """A factory of kind rules that are shared by all seeds.

    The rules of a kind are the same in every seed. Without sharing, each simulated worker would
    compute them again, while a real worker computes them once and runs for days.
    """
    cached: dict[tuple[frozenset[str], frozenset[str]], KindRules] = {}

    def rules_of(flows: Mapping[str, Flow], irreversible: frozenset[str]) -> KindRules:
        version = frozenset(flows), irreversible
        if version not in cached:
            cached[version] = KindRules(flows, irreversible)
        return cached[version]

    return rules_of


def run_chunk(seeds: Sequence[int], rules_of: RulesOf | None = None) -> Tally:
    """Run some seeds, one after the other, in this process."""
    tally, begun_s, rules_of = Tally(), time.process_time(), rules_of or shared_rules()
    for seed in seeds:
        result = run(seed, rules_of=rules_of)
        tally.add(result)
        if seed % REPEAT_EVERY == 0:
            # The repeated run counts only in the CPU time.
            tally.twice += 1
            if run(seed).hash() != result.hash():
                tally.fail(seed, "the same seed ran differently a second time")
    tally.cpu_s = time.process_time() - begun_s
    return tally


# For a process that only runs seeds. `run_chunk` creates new rules for each call instead, because
# a test may plant a bug between two calls.
_cached_rules = cache(shared_rules)


def _run_chunk_with_cache(seeds: Sequence[int]) -> Tally:
    return run_chunk(seeds, _cached_rules())


def run_seeds(
    seeds: Sequence[int], jobs: int = 1, advance: Callable[[int], object] = lambda _: None
) -> Tally:
    """Run the seeds in `jobs` processes. `advance` is called with the number of seeds done."""
    total = Tally()
    chunks = [seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK)]
    if jobs == 1:
        rules_of = shared_rules()
        for chunk in chunks:
            total.merge(run_chunk(chunk, rules_of))
            advance(len(chunk))
        return total
    # Spawned: the caller may have a thread that draws a progress bar, and a fork would copy it.
    with ProcessPoolExecutor(jobs, get_context("spawn"), collect_garbage_less_often) as pool:
        for done in as_completed([pool.submit(_run_chunk_with_cache, chunk) for chunk in chunks]):
            total.merge(done.result())
            advance(done.result().seeds)
    return total


def trace_lines(result: SeedResult) -> list[str]:
    """The trace of a seed as text lines."""
    return [f"{at - START_S:11.6f}  {source:<10} {text}" for at, source, text in result.trace]
