"""The figures of all runs: medians with their range, ratios with their targets, and tables."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from rich.table import Column, Table

from bench.cases import CASES, Case
from bench.running import Run, figure

RESULTS = Path(__file__).parent / "results"
LATEST = RESULTS / "latest.json"

Report: TypeAlias = dict[str, Any]

# By name: the least acceptable value, the goal, and whether more is better.
TARGETS: Mapping[str, tuple[float, float, bool]] = {
    "saturation_over_literal": (20, 30, True),
    "inflight64_over_literal64": (10, 14, True),
    "saturation_over_tpcb": (4.5, 6, True),
    "inflight256_over_dbos": (100, 150, True),
    "http_over_restate": (18, 30, True),
    "http_over_fastapi_literal": (12, 20, True),
    "http_batch_over_single": (2, 4, True),
    "engine_over_ceiling": (0.6, 0.75, True),
    "p99_inflight256_ms": (30, 15, False),
    "p50_lone_http_ms": (5, 3.5, False),
    "finished10m_over_10k": (0.95, 1, True),
    "backlog100k_s": (8, 5, False),
    "core_apply_per_s": (500_000, 800_000, True),
    "core_replay_per_s": (800_000, 1_200_000, True),
    "pool256_over_pgqueuer_members": (1, 2, True),
    "idle_cpu_percent": (1.5, 1, False),
}

SATURATION = ("tidegate-1", "tidegate-64", "tidegate-256", "tidegate-4096")
# The cases of the numerator and of the denominator of each ratio. The best of several counts.
RATIOS: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "saturation_over_literal": (SATURATION, ("literal-",)),
    "inflight64_over_literal64": (
        ("tidegate-64",),
        ("literal-psycopg-64", "literal-asyncpg-64"),
    ),
    "saturation_over_tpcb": (SATURATION, ("tpcb-8",)),
    "inflight256_over_dbos": (("tidegate-256",), ("dbos-",)),
    "http_over_restate": (("http-256",), ("restate-",)),
    "http_over_fastapi_literal": (("http-256",), ("fastapi-256",)),
    "http_batch_over_single": (("http-batch-",), ("http-1", "http-64", "http-256")),
    "engine_over_ceiling": (SATURATION, ("ceiling",)),
    "pool256_over_pgqueuer_members": (("pool-256",), ("pgqueuer-members-256",)),
}
# The case and the figure of each latency.
LATENCIES: Mapping[str, tuple[str, str]] = {
    "p99_inflight256_ms": ("tidegate-256", "p99_ms"),
    "p50_lone_http_ms": ("http-1", "p50_ms"),
}


def summary(case: Case, runs: Sequence[Run]) -> Report:
    """One case over all rounds."""

    def over(read: Callable[[Run], float]) -> Report:
        return figure([read(run) for run in runs])

    return {
        "says": case.description,
        "rounds": len(runs),
        "transfers": sum(run.result.made for run in runs),
        "refused": sum(run.result.refused for run in runs),
        "overloaded": sum(run.result.overloaded for run in runs),
        "per_s": over(lambda run: run.per_s),
        "p50_ms": over(lambda run: run.result.p50_ms),
        "p95_ms": over(lambda run: run.result.p95_ms),
        "p99_ms": over(lambda run: run.result.p99_ms),
        "max_ms": over(lambda run: run.result.max_ms),
        "cpu_us": _by_role([run.cpu_us for run in runs]),
        "memory_mb": _by_role([run.memory_mb for run in runs]),
        "memory_total_mb": over(lambda run: sum(run.memory_mb.values())),
        "wal_bytes": over(lambda run: run.wal_bytes),
        "fsyncs": over(lambda run: run.fsyncs),
        "conserved": True,  # A run that does not conserve ends the whole.
    }


def _by_role(runs: Sequence[Mapping[str, float]]) -> dict[str, Report]:
    return {role: figure([run[role] for run in runs]) for role in runs[0]}


def ratios(cases: Mapping[str, Report]) -> dict[str, float]:
    """The ratios of the medians. A partial run has only those that it measured."""
    found: dict[str, float] = {}
    for name, (above, below) in RATIOS.items():
        over, under = _best(cases, above), _best(cases, below)
        if over is not None and under:
            found[name] = round(over / under, 3)
    for name, (case, key) in LATENCIES.items():
        if case in cases:
            found[name] = cases[case][key]["median"]
    return found


def ratio_rounds(cases: Mapping[str, Report]) -> dict[str, list[float]]:
    """The ratios of every round: the best of one group over the best of the other."""
    found: dict[str, list[float]] = {}
    rounds = max((len(case["per_s"]["rounds"]) for case in cases.values()), default=0)
    for name, (above, below) in RATIOS.items():
        over, under = (_by_round(cases, names, rounds) for names in (above, below))
        if over and all(under):
            found[name] = [round(a / b, 3) for a, b in zip(over, under, strict=False)]
    for name, (case, key) in LATENCIES.items():
        if case in cases:
            found[name] = cases[case][key]["rounds"]
    return {name: values for name, values in found.items() if values}


def ranges(by_round: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """The lowest and the highest value of all rounds."""
    return {name: [min(values), max(values)] for name, values in by_round.items()}


def _by_round(cases: Mapping[str, Report], names: Sequence[str], rounds: int) -> list[float]:
    """The best of each round. Empty if a case failed in a round, as it is not known in which."""
    all_speeds = [case["per_s"]["rounds"] for case in _selected(cases, names)]
    if any(len(speeds) < rounds for speeds in all_speeds):
        return []
    return [max(speeds) for speeds in zip(*all_speeds, strict=True)]


def _best(cases: Mapping[str, Report], names: Sequence[str]) -> float | None:
    return max((case["per_s"]["median"] for case in _selected(cases, names)), default=None)


def _selected(cases: Mapping[str, Report], names: Sequence[str]) -> list[Report]:
    """The cases with these names. A name that ends in a dash is a prefix."""
    return [
        case
        for name, case in cases.items()
        if any(name == n or (n.endswith("-") and name.startswith(n)) for n in names)
    ]


SCALE = ("finished10m_over_10k", "backlog100k_s", "core_apply_per_s", "core_replay_per_s")
OF_SCALE = (*SCALE, "idle_cpu_percent")
RATIO_PARTS = ("ratios", "ratio_ranges", "ratio_rounds")


def keep_scale(old: Report, fresh: Report) -> Report:
    """The results of a new run, with the scale results of the last file."""
    both: Report = {"scale": old["scale"]} if "scale" in old else {}
    for part in RATIO_PARTS:
        kept = {n: v for n, v in old.get(part, {}).items() if n in OF_SCALE}
        both[part] = {**fresh.get(part, {}), **kept}
    return {**fresh, **both}


def add_scale(
    old: Report,
    scale: Report,
    found: Mapping[str, float],
    by_round: Mapping[str, Sequence[float]],
) -> Report:
    """The results of the last run, with new scale results."""
    before = old.get("scale", {})
    both = {**before, **scale}
    for part in ("measured", "machine_speed"):
        both[part] = {**before.get(part, {}), **scale.get(part, {})}
    results = {**old, "scale": both}
    fresh = (found, ranges(by_round), by_round)
    for part, values in zip(RATIO_PARTS, fresh, strict=True):
        kept = {n: v for n, v in old.get(part, {}).items() if n not in found}
        results[part] = {**kept, **values}
    return results


def load(path: Path = LATEST) -> Report:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def save(report: Report, path: Path = LATEST) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


COLUMNS = ("case", "per s", "p50", "p95", "p99", "max ms", "µs Python", "PG", "core")
MORE = ("WAL B", "fsyncs", "MB")
SPREAD = "the median of all rounds (lowest…highest)"


def table(cases: Mapping[str, Report], missing: Mapping[str, str]) -> Table:
    # Long cells are folded, because a range that is cut off is useless.
    columns = (Column(name, overflow="fold") for name in (*COLUMNS, *MORE))
    shown = Table(*columns, title=f"per transfer; {SPREAD}", pad_edge=False)
    for cells in rows(cases, missing):
        shown.add_row(*cells)
    return shown


def rows(cases: Mapping[str, Report], missing: Mapping[str, str]) -> Iterable[list[str]]:
    for case in CASES:
        if case.name in cases:
            # A case that failed in some round is marked, as its figures are incomplete.
            short = f" ({cases[case.name]['rounds']} rounds only)" if case.name in missing else ""
            yield _cells(case.name + short, cases[case.name])
        elif case.name in missing:
            yield [case.name, "missing", missing[case.name]]


def _cells(name: str, case: Report) -> list[str]:
    cpu = case["cpu_us"]
    times = [spread(case[key], 1) for key in ("p50_ms", "p95_ms", "p99_ms", "max_ms")]
    used = [spread(cpu[r], 1) if r in cpu else "" for r in ("python", "postgres", "core")]
    return [
        name,
        spread(case["per_s"], 0),
        *times,
        *used,
        spread(case["wal_bytes"], 0),
        spread(case["fsyncs"], 3),
        spread(case["memory_total_mb"], 0) if "memory_total_mb" in case else "",
    ]


def spread(figure: Mapping[str, float], digits: int) -> str:
    median, least, most = (f"{figure[key]:,.{digits}f}" for key in ("median", "min", "max"))
    return f"{median} ({least}…{most})"


def ratio_table(found: Mapping[str, float], ranges: Mapping[str, Sequence[float]]) -> Table:
    shown = Table("ratio", "measured", "in any round", "at least", "goal", "", pad_edge=False)
    for name, (least, goal, _) in TARGETS.items():
        value = "not measured" if name not in found else f"{found[name]:,.4g}"
        span = "…".join(f"{value:,.4g}" for value in ranges.get(name, ()))
        shown.add_row(name, value, span, f"{least:,g}", f"{goal:,g}", verdict(name, found))
    return shown


def verdict(name: str, found: Mapping[str, float]) -> str:
    if name not in found:
        return ""
    least, goal, more = TARGETS[name]
    value = found[name] if more else -found[name]
    sign = 1 if more else -1
    return "goal" if value >= sign * goal else "reached" if value >= sign * least else "missed"
