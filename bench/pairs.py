"""`python -m bench.pairs REVISION`: compares this tree with an earlier one, case by case.

The machine's speed changes within minutes, so the trees run in pairs: a pair is one run of each
tree, and the figure of a case is the median of its ratios over all pairs.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.fronts import ROOT

CASES = (
    *("tidegate-1", "tidegate-64", "tidegate-256", "tidegate-4096", "tidegate-256-refused-50"),
    *("http-1", "http-64", "http-256", "http-batch-64", "pool-256"),
)
LEAST = 0.97
RUN_S = 600.0


def measured(tree: Path, cases: Sequence[str], seconds: float) -> dict[str, float]:
    """Transfers per second of each case, measured by the benchmark of this tree."""
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "run.json"
        words = [sys.executable, "-m", "bench", "--rounds", "1", "--seconds", str(seconds)]
        words += [word for case in cases for word in ("--only", case)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tree / "src"), str(tree)])}
        done = subprocess.run(
            [*words, "--out", str(out)],
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            timeout=RUN_S,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"the benchmark of {tree} failed: {done.stderr[-2000:]}")
        found = json.loads(out.read_text(encoding="utf-8"))
    return {name: case["per_s"]["median"] for name, case in found["cases"].items()}


def main() -> None:
    words = argparse.ArgumentParser(prog="python -m bench.pairs", description=__doc__)
    words.add_argument("revision", help="the git revision of the earlier tree")
    words.add_argument("--pairs", type=int, default=4)
    words.add_argument("--seconds", type=float, default=3.0)
    words.add_argument("--only", action="append", default=[], help="a case; may be repeated")
    options = words.parse_args()
    cases, console = options.only or list(CASES), Console()
    ratios: dict[str, list[float]] = {case: [] for case in cases}
    with tempfile.TemporaryDirectory() as place:
        base = Path(place) / "base"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", base, options.revision], check=True)
        try:
            for number in range(options.pairs):
                # The order alternates, because the second run finds a busier disk.
                order = (base, ROOT) if number % 2 == 0 else (ROOT, base)
                found = {tree: measured(tree, cases, options.seconds) for tree in order}
                for case in cases:
                    if case in found[base] and case in found[ROOT]:
                        ratios[case].append(found[ROOT][case] / found[base][case])
                console.print(f"pair {number + 1}: " + shown(found[base], found[ROOT]))
        finally:
            subprocess.run([*git, "remove", "--force", base], check=True)
    console.print(table(ratios))


def shown(before: dict[str, float], after: dict[str, float]) -> str:
    return "  ".join(f"{case} {before[case]:.0f}→{after.get(case, 0):.0f}" for case in before)


def table(ratios: dict[str, list[float]]) -> Table:
    rows = Table("case", "median", "lowest", "highest", f"≥ {LEAST}")
    for case, values in ratios.items():
        if values:
            middle = statistics.median(values)
            figures = (f"{f:.3f}" for f in (middle, min(values), max(values)))
            rows.add_row(case, *figures, "yes" if middle >= LEAST else "no")
    return rows


if __name__ == "__main__":
    main()
