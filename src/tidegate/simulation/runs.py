"""Many seeds in several processes, and what they come to together."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context

from tidegate.app import collect_seldom
from tidegate.core.flow import Edge, Flow
from tidegate.engine.kind_rules import KindRules, RulesOf
from tidegate.flows import FLOWS
from tidegate.simulation.effects import plain, reachable
from tidegate.simulation.faults import KINDS, Fault
from tidegate.simulation.loop import START_S
from tidegate.simulation.result import SeedResult
from tidegate.simulation.scenario import PLEDGED, run

CHUNK = 25
TWICE = 100  # One seed of so many is run again, and must be the same.
MAX_FAILURES = 100
ENOUGH = 100  # Times that each edge and each fault must happen in a run worth its name.


@dataclass
class Tally:
    """What some seeds came to. Two of them add up to one."""

    seeds: int = 0
    transfers: int = 0
    refused: int = 0
    edges: Counter[tuple[str, Edge]] = field(default_factory=Counter)
    faults: Counter[tuple[str, Fault]] = field(default_factory=Counter)
    meddling: Counter[str] = field(default_factory=Counter)
    liveness_s: float = 0.0  # The longest that any seed took to end everything after healing.
    twice: int = 0
    cpu_s: float = 0.0
    failures: list[tuple[int, str]] = field(default_factory=list)  # Seed, and what was wrong.

    def take(self, result: SeedResult) -> None:
        self.seeds += 1
        self.transfers += result.transfers
        self.refused += result.refused
        self.edges.update(result.edges)
        self.faults.update(result.faults)
        self.meddling.update(result.meddling)
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
        self.meddling.update(other.meddling)
        self.liveness_s = max(self.liveness_s, other.liveness_s)
        self.twice += other.twice
        self.cpu_s += other.cpu_s
        for seed, text in other.failures:
            self.fail(seed, text)

    @property
    def seeds_per_second_per_core(self) -> float:
        return self.seeds / self.cpu_s if self.cpu_s else 0.0

    def rare(self, enough: int = ENOUGH) -> dict[str, int]:
        """Edges, faults and meddlings that happened less often than that."""
        found = self.crossings()
        found |= {f"{point} {fault}": self.faults[point, fault] for point, fault in KINDS}
        found |= {name: self.meddling[name] for name in PLEDGED}
        return {name: times for name, times in found.items() if times < enough}

    def crossings(self) -> dict[str, int]:
        """How often each edge of each flow was taken."""
        return {
            f"{flow.name} {'>'.join(edge.path)} {edge.answer}": self.edges[flow.name, plain(edge)]
            for flow in FLOWS.values()
            for edge in reachable(flow)
        }

    def figures(self) -> dict[str, object]:
        """For programs, and for the page that shows the proof."""
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
            "edges_below_100": sum(times < ENOUGH for times in self.crossings().values()),
            "below_100": self.rare(),
        }


def shared_rules() -> RulesOf:
    """What holds for all transfers of a kind holds in every seed: each worker that starts in one
    would work it out anew, where a real one works for days.
    """
    kept: dict[tuple[frozenset[str], frozenset[str]], KindRules] = {}

    def rules_of(flows: Mapping[str, Flow], irreversible: frozenset[str]) -> KindRules:
        version = frozenset(flows), irreversible
        if version not in kept:
            kept[version] = KindRules(flows, irreversible)
        return kept[version]

    return rules_of


def run_chunk(seeds: Sequence[int], rules_of: RulesOf | None = None) -> Tally:
    """Some seeds, one after the other, in this process."""
    tally, begun_s, rules_of = Tally(), time.process_time(), rules_of or shared_rules()
    for seed in seeds:
        result = run(seed, rules_of=rules_of)
        tally.take(result)
        if seed % TWICE == 0:
            # Not counted among the seeds, only the time that it takes.
            tally.twice += 1
            if run(seed).hash() != result.hash():
                tally.fail(seed, "the same seed ran differently a second time")
    tally.cpu_s = time.process_time() - begun_s
    return tally


# Of a process that does nothing but run seeds. Where a bug may be planted any time they are not
# kept from one call to the next.
_own_rules = cache(shared_rules)


def _run_chunk_apart(seeds: Sequence[int]) -> Tally:
    return run_chunk(seeds, _own_rules())


def run_seeds(
    seeds: Sequence[int], jobs: int = 1, advance: Callable[[int], object] = lambda _: None
) -> Tally:
    """All of them, in so many processes; `advance` hears how many more are done."""
    total = Tally()
    chunks = [seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK)]
    if jobs == 1:
        rules_of = shared_rules()
        for chunk in chunks:
            total.merge(run_chunk(chunk, rules_of))
            advance(len(chunk))
        return total
    # Spawned, because whoever waits may have a thread that draws a bar, and a fork would copy it.
    with ProcessPoolExecutor(jobs, get_context("spawn"), collect_seldom) as pool:
        for done in as_completed([pool.submit(_run_chunk_apart, chunk) for chunk in chunks]):
            total.merge(done.result())
            advance(done.result().seeds)
    return total


def told(result: SeedResult) -> list[str]:
    """The trace of a seed, to be read."""
    return [f"{at - START_S:11.6f}  {who:<10} {what}" for at, who, what in result.trace]
