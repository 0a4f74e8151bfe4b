"""From runs to figures: medians with their range, the ratios that are asked for, a table."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from rich.table import Table

from bench.cases import CASES, Case
from bench.running import Run, figure

RESULTS = Path(__file__).parent / "results"
LATEST = RESULTS / "latest.json"

Report: TypeAlias = dict[str, Any]

# By name: what it must at least reach, the goal, and whether more is better.
TARGETS: Mapping[str, tuple[float, float, bool]] = {
    "saturation_over_literal": (15, 30, True),
    "inflight64_over_literal64": (8, 12, True),
    "saturation_over_tpcb": (3, 6, True),
    "inflight256_over_dbos": (80, 150, True),
    "http_over_restate": (15, 30, True),
    "http_over_fastapi_literal": (8, 20, True),
    "http_batch_over_single": (2, 4, True),
    "engine_over_ceiling": (0.5, 0.7, True),
    "p99_inflight256_ms": (30, 15, False),
    "p50_lone_http_ms": (8, 4, False),
    "finished10m_over_10k": (0.8, 0.95, True),
    "backlog100k_s": (20, 5, False),
    "core_apply_per_s": (500_000, 800_000, True),
    "core_replay_per_s": (800_000, 1_200_000, True),
    "idle_cpu_percent": (3, 1, False),
}

SATURATION = ("tidegate-1", "tidegate-64", "tidegate-256", "tidegate-4096")
# Of each ratio the cases above and below the line; the best of several counts.
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
}


def summary(case: Case, runs: Sequence[Run]) -> Report:
    """One case over all rounds."""

    def over(read: Callable[[Run], float]) -> dict[str, float]:
        return figure([read(run) for run in runs])

    return {
        "says": case.says,
        "rounds": len(runs),
        "transfers": sum(run.result.made for run in runs),
        "refused": sum(run.result.refused for run in runs),
        "overloaded": sum(run.result.overloaded for run in runs),
        "per_s": over(lambda run: run.per_s),
        "per_s_by_round": [round(run.per_s, 1) for run in runs],
        "p50_ms": over(lambda run: run.result.p50_ms),
        "p95_ms": over(lambda run: run.result.p95_ms),
        "p99_ms": over(lambda run: run.result.p99_ms),
        "max_ms": over(lambda run: run.result.max_ms),
        "cpu_us": _by_role([run.cpu_us for run in runs]),
        "memory_mb": _by_role([run.memory_mb for run in runs]),
        "wal_bytes": over(lambda run: run.wal_bytes),
        "fsyncs": over(lambda run: run.fsyncs),
        "conserved": True,  # A run that does not conserve ends the whole.
    }


def _by_role(runs: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    return {role: figure([run[role] for run in runs]) for role in runs[0]}


def ratios(cases: Mapping[str, Report]) -> dict[str, float]:
    """Of medians. What a partial run has not measured is left out."""
    found: dict[str, float] = {}
    for name, (above, below) in RATIOS.items():
        over, under = _best(cases, above), _best(cases, below)
        if over is not None and under:
            found[name] = round(over / under, 3)
    if "tidegate-256" in cases:
        found["p99_inflight256_ms"] = cases["tidegate-256"]["p99_ms"]["median"]
    if "http-1" in cases:
        found["p50_lone_http_ms"] = cases["http-1"]["p50_ms"]["median"]
    return found


def spreads(cases: Mapping[str, Report]) -> dict[str, list[float]]:
    """The lowest and the highest that a ratio was in any one round."""
    found = {}
    rounds = min((len(case["per_s_by_round"]) for case in cases.values()), default=0)
    for name, (above, below) in RATIOS.items():
        each = []
        for number in range(rounds):
            over, under = (_best(cases, names, number) for names in (above, below))
            if over is not None and under:
                each.append(round(over / under, 3))
        if each:
            found[name] = [min(each), max(each)]
    return found


def _best(
    cases: Mapping[str, Report], names: Sequence[str], number: int | None = None
) -> float | None:
    """A name that ends in a dash stands for all that begin so."""
    meant = [
        case
        for name, case in cases.items()
        if any(name == n or (n.endswith("-") and name.startswith(n)) for n in names)
    ]
    if number is None:
        return max((case["per_s"]["median"] for case in meant), default=None)
    return max((case["per_s_by_round"][number] for case in meant), default=None)


SCALE = ("finished10m_over_10k", "backlog100k_s", "core_apply_per_s", "core_replay_per_s")
OF_SCALE = (*SCALE, "idle_cpu_percent")


def keep_scale(old: Report, fresh: Report) -> Report:
    """A new run, with what the measurements of scale have left beside the last one."""
    kept = {n: v for n, v in old.get("ratios", {}).items() if n in OF_SCALE}
    scale = {"scale": old["scale"]} if "scale" in old else {}
    return {**fresh, **scale, "ratios": {**fresh["ratios"], **kept}}


def add_scale(old: Report, scale: Report, found: Mapping[str, float]) -> Report:
    """The same from the other side: what was measured of scale, into the last run."""
    before = old.get("scale", {})
    both = {**before, **scale, "measured": {**before.get("measured", {}), **scale["measured"]}}
    return {**old, "scale": both, "ratios": {**old.get("ratios", {}), **found}}


def load(path: Path = LATEST) -> Report:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def save(report: Report, path: Path = LATEST) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


COLUMNS = ("case", "per s", "(min…max)", "p50", "p95", "p99", "max ms", "µs Python", "PG", "core")
MORE = ("WAL B", "fsyncs", "MB")


def table(cases: Mapping[str, Report], missing: Mapping[str, str]) -> Table:
    shown = Table(*COLUMNS, *MORE, title="per transfer; medians of all rounds", pad_edge=False)
    for cells in rows(cases, missing):
        shown.add_row(*cells)
    return shown


def rows(cases: Mapping[str, Report], missing: Mapping[str, str]) -> Iterable[list[str]]:
    for case in CASES:
        if case.name in cases:
            # Failed in some round: what is left of it must not look whole.
            short = f" ({cases[case.name]['rounds']} rounds only)" if case.name in missing else ""
            yield _cells(case.name + short, cases[case.name])
        elif case.name in missing:
            yield [case.name, "missing", missing[case.name]]


def _cells(name: str, case: Report) -> list[str]:
    speed, cpu = case["per_s"], case["cpu_us"]
    times = [f"{case[key]['median']:.1f}" for key in ("p50_ms", "p95_ms", "p99_ms", "max_ms")]
    used = [f"{cpu[r]['median']:.1f}" if r in cpu else "" for r in ("python", "postgres", "core")]
    memory = sum(each["median"] for each in case["memory_mb"].values())
    return [
        name,
        f"{speed['median']:,.0f}",
        f"{speed['min']:,.0f}…{speed['max']:,.0f}",
        *times,
        *used,
        f"{case['wal_bytes']['median']:,.0f}",
        f"{case['fsyncs']['median']:.3f}",
        f"{memory:.0f}",
    ]


def ratio_table(found: Mapping[str, float], ranges: Mapping[str, Sequence[float]]) -> Table:
    shown = Table("ratio", "measured", "in any round", "at least", "goal", "", pad_edge=False)
    for name, (least, goal, _) in TARGETS.items():
        value = "not measured" if name not in found else f"{found[name]:,.4g}"
        span = "…".join(f"{each:,.4g}" for each in ranges.get(name, ()))
        shown.add_row(name, value, span, f"{least:,g}", f"{goal:,g}", verdict(name, found))
    return shown


def verdict(name: str, found: Mapping[str, float]) -> str:
    if name not in found:
        return ""
    least, goal, more = TARGETS[name]
    value = found[name] if more else -found[name]
    sign = 1 if more else -1
    return "goal" if value >= sign * goal else "reached" if value >= sign * least else "missed"
