"""Everything that is tried, in one run: `make proof`.

Each part runs as a program of its own and tells its figures as JSON. When all of them hold, the
figures are kept in docs/proof.json, and docs/proof.md shows them to a reader.
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
KEPT, PAGE = ROOT / "docs" / "proof.json", ROOT / "docs" / "proof.md"
PART_S = 3600.0
LOOKS = 5  # At the machine's speed, before the simulation and after it.

Said = Mapping[str, Any]
Figures = dict[str, float]


class Part(NamedTuple):
    """One way in which it is tried."""

    name: str
    command: tuple[str, ...]
    figures: Callable[[Said], Figures]  # Among them `violations`: what must be none.


class Figure(NamedTuple):
    """One line of the table."""

    key: str
    text: str
    least: float | None  # A run that reaches less proves less than we say.
    aim: float | None = None  # Of speed: a run that reaches less proves the same, and says so.


PARTS = (
    Part(
        "simulation",
        ("-m", "tidegate.cli", "simulate", "--seeds", "5000", "--jobs", "2"),
        lambda said: {
            "seeds": said["seeds"],
            "transfers": said["transfers"],
            "seeds_per_second_per_core": said["seeds_per_second_per_core"],
            "worst_liveness_s": said["worst_liveness_s"],
            "edges_below_100": said["edges_below_100"],
            "faults_below_100": len(said["below_100"]),
            "violations": said["violations"],
        },
    ),
    Part(
        "exhaustive fault plans",
        ("-m", "tests.simulation.plans", "--depth", "2", "--thorough"),
        lambda said: {"plans": said["plans"], "violations": said["violations"]},
    ),
    Part(
        "mutants",
        ("-m", "tests.simulation.mutants"),
        lambda said: {
            "mutants": said["mutants"],
            "mutants_caught": said["mutants_caught"],
            "violations": said["mutants"] - said["mutants_caught"],
        },
    ),
    Part(
        "PostgreSQL against its twin",
        ("-m", "tests.differential", "--operations", "10000"),
        lambda said: {"differential_operations": said["operations"], "violations": 0},
    ),
    Part(
        "real kills",
        ("-m", "tests.crash.run", "--kills", "50", "--transfers", "2000"),
        lambda said: {
            "real_kills": said["kills"],
            "transfers_under_kills": said["transfers"],
            "violations": len(said["violations"]),
        },
    ),
    Part(
        "damaged logs",
        ("-m", "tests.trading_core.mutations"),
        lambda said: {"wal_mutations": said["wal_mutations"], "violations": said["undetected"]},
    ),
    Part(
        "model",
        ("-m", "tests.model.checker"),
        lambda said: {"model_states": said["model_states"], "violations": int(not said["ok"])},
    ),
)

FIGURES = (
    Figure("seeds", "seeds of the simulation, each a world in which everything fails", 5_000),
    Figure("transfers", "transfers in it", 100_000),
    Figure("seeds_per_second_per_core", "seeds per second and core", None, aim=50),
    Figure("python_steps_per_s", "steps of a fixed Python loop per second, just then", None),
    Figure("worst_liveness_s", "virtual seconds until all had ended after healing, at worst", None),
    Figure("edges_below_100", "edges of flows that were taken less than 100 times", None),
    Figure("faults_below_100", "edges, faults and doings that happened less than 100 times", None),
    Figure(
        "plans", "exhaustive plans: every call with every fault, then with a second one", 13_000
    ),
    Figure("mutants", "planted bugs", 25),
    Figure("mutants_caught", "planted bugs caught", 25),
    Figure("differential_operations", "operations on PostgreSQL and on its twin, compared", 10_000),
    Figure("real_kills", "kills, stops and cuts of real processes", 50),
    Figure("transfers_under_kills", "transfers over HTTP meanwhile", 2_000),
    Figure("wal_mutations", "truncations and bit flips of a log", 30_000),
    Figure("model_states", "states of the model, safety", 100_000),
    Figure("violations", "violations, of all of these together", None),
)


def run(part: Part) -> Said:
    """Its bar is shown; what it says is read. A part that fails ends the run."""
    command = [sys.executable, *part.command, "-o", "json"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, timeout=PART_S, check=False)
    if done.returncode:
        sys.stderr.write(done.stdout.decode())
        raise SystemExit(f"{part.name} does not hold: {' '.join(command[1:])}")
    said: Said = json.loads(done.stdout)
    return said


def prove() -> dict[str, Any]:
    figures: Figures = {"violations": 0}
    seconds: Figures = {}
    console = Console(stderr=True)
    for place, part in enumerate(PARTS, 1):
        console.print(f"[bold]{place} of {len(PARTS)}: {part.name}")
        speeds = looks() if part.name == "simulation" else []
        begun_s = time.monotonic()
        for key, value in part.figures(run(part)).items():
            figures[key] = figures[key] + value if key == "violations" else value
        seconds[part.name] = round(time.monotonic() - begun_s, 1)
        if speeds:
            figures["python_steps_per_s"] = round(median(speeds + looks()))
    return {
        **{figure.key: figures[figure.key] for figure in FIGURES},
        "seconds": seconds,
        "revision": revision(),
        "at": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}",
    }


def looks() -> list[float]:
    return [python_steps_per_s() for _ in range(LOOKS)]


def revision() -> str:
    words = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def missing(proof: Said) -> list[str]:
    """What a run did not reach."""
    short = [
        f"{figure.text}: {proof[figure.key]} instead of {figure.least}"
        for figure in FIGURES
        if figure.least is not None and proof[figure.key] < figure.least
    ]
    return short + [
        f"{key} is {proof[key]}" for key in ("violations", "edges_below_100") if proof[key]
    ]


def too_slow(proof: Said) -> list[str]:
    """The aims of speed that a run did not reach."""
    return [
        f"{figure.text}: {proof[figure.key]}, and the aim is {figure.aim}"
        for figure in FIGURES
        if figure.aim is not None and proof[figure.key] < figure.aim
    ]


def page(proof: Said) -> str:
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


TEXT = """# What was tried

A money engine is trusted for how it was tried. `make proof` tries all of this and prints this
table; it was last run on revision {revision}, {at}, on {machine}.

| what | figure |
|---|---:|
{rows}

Nothing here is a mock. The simulation runs the engine, the flows, the trading core and its client
as they are shipped, in virtual time, on a disk, a network and a database that fail; an auditor
that reads only bytes and commits, and none of the engine's own bookkeeping, checks every step. A
seed that fails can be run again: `tidegate simulate --seed N` prints what happened in it.

Planted bugs show that the trials have teeth: each is a mistake that somebody could make, switched
on from outside, and must be caught. The kills are signals to real processes under load, with a
client that keeps its own books. The model is checked by Spin, all states of it; variants with
known mistakes must fail. Of the plans with two faults none is left out here. A run of the tests
tries every single fault, all pairs on the paths of a flow whose table was changed, and a sample of
the other pairs, which differs with each commit. `make sim-deep` goes on to three.

| part | time |
|---|---:|
{parts}

What this does not show: a disk that lies about a sync on real hardware, a PostgreSQL that loses
what it has acknowledged, and mistakes that are the same in the code, the twin and the auditor.
"""


def main() -> int:
    proof = prove()
    table = Table("what", "figure", title="Tried", title_justify="left")
    for figure in FIGURES:
        table.add_row(figure.text, _shown(proof[figure.key]))
    Console().print(table)
    if short := missing(proof):
        print("\n".join(short))
        return 1
    print("\n".join(too_slow(proof)))
    KEPT.write_text(json.dumps(proof, indent=2) + "\n")
    PAGE.write_text(page(proof))
    print(f"kept in {KEPT.relative_to(ROOT)} and {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
