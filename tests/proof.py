"""Runs all large tests and records their figures: `make proof`.

Each part runs as a separate program and prints its figures as JSON. If all parts pass, the
figures are written to docs/proof.json and shown in docs/proof.md.
"""

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from bench.machine import python_steps_per_s

ROOT = Path(__file__).parent.parent
FIGURES_FILE, PAGE = ROOT / "docs" / "proof.json", ROOT / "docs" / "proof.md"
PART_S = 3600.0
SPEED_SAMPLES = 5  # Of the machine's speed, before the simulation and after it.

Report = Mapping[str, Any]
Figures = dict[str, float]


class Part(NamedTuple):
    """One part of the proof: a program and the figures that it yields."""

    name: str
    command: tuple[str, ...]
    figures: Callable[[Report], Figures]  # They include `violations`, which must be 0.


class Figure(NamedTuple):
    """One row of the table."""

    key: str
    text: str
    least: float | None  # A run that reaches less fails.
    aim: float | None = None  # A speed. A run that reaches less passes, and the page reports it.


PARTS = (
    Part(
        "simulation",
        ("-m", "tidegate.cli", "simulate", "--seeds", "5000", "--jobs", "2"),
        lambda report: {
            "seeds": report["seeds"],
            "transfers": report["transfers"],
            "seeds_per_second_per_core": report["seeds_per_second_per_core"],
            "worst_liveness_s": report["worst_liveness_s"],
            "edges_below_100": report["edges_below_100"],
            "faults_below_100": len(report["below_100"]),
            "violations": report["violations"],
        },
    ),
    Part(
        "exhaustive fault plans",
        ("-m", "tests.simulation.plans", "--depth", "2", "--thorough"),
        lambda report: {"plans": report["plans"], "violations": report["violations"]},
    ),
    Part(
        "mutants",
        ("-m", "tests.simulation.mutants"),
        lambda report: {
            "mutants": report["mutants"],
            "mutants_caught": report["mutants_caught"],
            "violations": report["mutants"] - report["mutants_caught"],
        },
    ),
    Part(
        "PostgreSQL against its twin",
        ("-m", "tests.differential", "--operations", "10000"),
        lambda report: {"differential_operations": report["operations"], "violations": 0},
    ),
    Part(
        "real kills",
        ("-m", "tests.crash.run", "--kills", "50", "--transfers", "2000"),
        lambda report: {
            "real_kills": report["kills"],
            "transfers_under_kills": report["transfers"],
            "violations": len(report["violations"]),
        },
    ),
    Part(
        "damaged logs",
        ("-m", "tests.trading_core.mutations"),
        lambda report: {
            "wal_mutations": report["wal_mutations"],
            "violations": report["undetected"],
        },
    ),
    Part(
        "model",
        ("-m", "tests.model.checker"),
        lambda report: {
            "model_states": report["model_states"],
            "violations": int(not report["ok"]),
        },
    ),
)

FIGURES = (
    Figure("seeds", "seeds of the simulation, each with faults of all kinds", 5_000),
    Figure("transfers", "transfers in these seeds", 100_000),
    Figure("seeds_per_second_per_core", "seeds per second and core", None, aim=50),
    Figure("python_steps_per_s", "steps of a fixed Python loop per second at that time", None),
    Figure(
        "worst_liveness_s", "virtual seconds until all had ended after the faults, at most", None
    ),
    Figure("edges_below_100", "edges of flows that were taken less than 100 times", None),
    Figure("faults_below_100", "edges, faults and events that happened less than 100 times", None),
    Figure("plans", "plans: every call with every fault, then every pair of faults", 13_000),
    Figure("mutants", "planted bugs", 25),
    Figure("mutants_caught", "planted bugs caught", 25),
    Figure(
        "differential_operations",
        "operations with equal results on PostgreSQL and its twin",
        10_000,
    ),
    Figure("real_kills", "kills, pauses and disconnects of real processes", 50),
    Figure("transfers_under_kills", "transfers over HTTP during these", 2_000),
    Figure("wal_mutations", "truncations and bit flips of a log", 30_000),
    Figure("model_states", "states of the model that were checked for safety", 100_000),
    Figure("violations", "violations in all parts", None),
)


def run(part: Part) -> Report:
    """Run a part and return its report. A part that fails ends the whole run."""
    command = [sys.executable, *part.command, "-o", "json"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, timeout=PART_S, check=False)
    if done.returncode:
        sys.stderr.write(done.stdout.decode())
        raise SystemExit(f"{part.name} failed: {' '.join(command[1:])}")
    report: Report = json.loads(done.stdout)
    return report


def prove() -> dict[str, Any]:
    figures: Figures = {"violations": 0}
    seconds: Figures = {}
    console = Console(stderr=True)
    for number, part in enumerate(PARTS, 1):
        console.print(f"[bold]{number} of {len(PARTS)}: {part.name}")
        speeds = machine_speeds() if part.name == "simulation" else []
        started_s = time.monotonic()
        for key, value in part.figures(run(part)).items():
            figures[key] = figures[key] + value if key == "violations" else value
        seconds[part.name] = round(time.monotonic() - started_s, 1)
        if speeds:
            figures["python_steps_per_s"] = round(median(speeds + machine_speeds()))
    return {
        **{figure.key: figures[figure.key] for figure in FIGURES},
        "seconds": seconds,
        "revision": revision(),
        "at": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}",
    }


def machine_speeds() -> list[float]:
    return [python_steps_per_s() for _ in range(SPEED_SAMPLES)]


def revision() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def missing(proof: Report) -> list[str]:
    """The figures that a run had to reach and did not."""
    short = [
        f"{figure.text}: {proof[figure.key]} instead of {figure.least}"
        for figure in FIGURES
        if figure.least is not None and proof[figure.key] < figure.least
    ]
    return short + [
        f"{key} is {proof[key]}" for key in ("violations", "edges_below_100") if proof[key]
    ]


def too_slow(proof: Report) -> list[str]:
    """The speed aims that a run did not reach."""
    return [
        f"{figure.text}: {proof[figure.key]}, below the aim of {figure.aim}"
        for figure in FIGURES
        if figure.aim is not None and proof[figure.key] < figure.aim
    ]


def page(proof: Report) -> str:
    rows = [f"| {figure.text} | {_shown(proof[figure.key])} |" for figure in FIGURES]
    rows += [f"| *missed:* {text} | |" for text in too_slow(proof)]
    parts = [f"| {name} | {seconds:.0f} s |" for name, seconds in proof["seconds"].items()]
    return TEXT.format(
        rows="\n".join(rows),
        parts="\n".join(parts),
        revision=proof["revision"],
        at=proof["at"],
        machine=proof["machine"],
    )


def _shown(value: float) -> str:
    return f"{value:,}".replace(",", " ")


TEXT = """# What was tested

`make proof` runs all of these tests and prints this table. The last run was on revision
{revision}, {at}, on {machine}.

| what | figure |
|---|---:|
{rows}

Nothing here is a mock. The simulation runs the released engine, flows, trading core and core
client in virtual time, on a disk, a network and a database with faults. An auditor checks every
step. It reads only durable bytes, wire frames and commits, and none of the engine's bookkeeping.
A seed that fails can be run again: `tidegate simulate --seed N` prints its trace.

Planted bugs show that the tests find bugs: each is a plausible mistake, patched into the code, and
must be caught. The kills are signals to real processes under load, with clients that keep their
own books. Spin checks all states of the model, and variants with known bugs must fail. This run
includes all plans with two faults. A test run executes all plans with one fault, all pairs on the
paths of a flow whose table was changed, and a sample of the other pairs, which differs with each
commit. `make sim-deep` runs plans with three faults.

| part | time |
|---|---:|
{parts}

These tests do not cover a real disk that reports a sync that it has not done, a PostgreSQL that
loses acknowledged commits, and mistakes that are the same in the code, the twin and the auditor.
"""


def main() -> int:
    proof = prove()
    table = Table("what", "figure", title="Tested", title_justify="left")
    for figure in FIGURES:
        table.add_row(figure.text, _shown(proof[figure.key]))
    Console().print(table)
    if short := missing(proof):
        print("\n".join(short))
        return 1
    print("\n".join(too_slow(proof)))
    FIGURES_FILE.write_text(json.dumps(proof, indent=2) + "\n")
    PAGE.write_text(page(proof))
    print(f"written to {FIGURES_FILE.relative_to(ROOT)} and {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
