"""Checks the model with Spin: `python -m tests.model.checker [-o json]`.

Each run generates a verifier, compiles it and explores every state that can be reached.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

MODEL = Path(__file__).parents[2] / "model" / "internal_transfer.pml"
STEP_S = 300.0
DEPTH = 100_000  # Of the search. A deeper search is an error, and is not silently incomplete.
MEMORY_MB = 1_024

# Each entry plants one bug, which must violate the named claim.
PLANTED = {
    "REFUND_ON_TIMEOUT": "safety",
    "REFUSAL_NOT_STORED": "safety",
    "NO_CAS": "safety",
    "CALL_BEFORE_PERSIST": "safety",
    "KEY_WITHOUT_VERSION": "safety",
    "NO_TOMBSTONE": "safety",
    "LEASE_FOR_EVER": "liveness",
}
# These states must be reachable, or the claims would hold trivially.
REACHED = ("TARGET_PENDING", "COMPENSATING", "COMMITTED", "FAILED", "ROLLED_BACK")


class NoSpin(Exception):
    """Spin or the C compiler is missing or fails. The message says which."""


class SpinResult(NamedTuple):
    """The states that one run explored, and the violated claim, if any."""

    name: str
    claim: str
    states: int
    depth: int
    errors: int
    violated: str


def unchanged(claim: str) -> SpinResult:
    """The model without a planted bug."""
    return _verify(claim, claim, None)


def planted(bug: str) -> SpinResult:
    return _verify(bug, PLANTED[bug], bug)


def reached(state: str) -> SpinResult:
    """The model with the claim that this state is never reached. It must be violated."""
    return _verify(f"never {state}", "safety", f"NEVER_SEEN={state}")


def missing() -> str | None:
    """The reason why the model cannot be checked here, or None."""
    absent = [program for program in ("spin", "gcc") if shutil.which(program) is None]
    if absent:
        return f"{' and '.join(absent)} not found: make model-tools installs them on Debian"
    return None


def _verify(name: str, claim: str, define: str | None) -> SpinResult:
    if reason := missing():
        raise NoSpin(reason)
    defines = [f"-D{define}"] if define else []
    with tempfile.TemporaryDirectory(prefix="tidegate-model-") as directory:
        _run(["spin", *defines, "-a", str(MODEL)], directory)
        mode = ["-DSAFETY", "-DNOCLAIM"] if claim == "safety" else ["-DNFAIR=3"]
        bounds = [f"-DMEMLIM={MEMORY_MB}"]
        _run(["gcc", "-O2", "-w", *mode, *bounds, "-o", "pan", "pan.c"], directory)
        search = [] if claim == "safety" else ["-a", "-f"]
        output = _run(["./pan", "-b", f"-m{DEPTH}", "-w22", *search], directory)
    return _read(name, claim, output)


def _run(command: list[str], directory: str) -> str:
    done = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, timeout=STEP_S, check=False
    )
    if done.returncode != 0:
        raise NoSpin(f"{' '.join(command)} failed: {done.stdout[-500:]}{done.stderr[-500:]}")
    return done.stdout


def _read(name: str, claim: str, output: str) -> SpinResult:
    states = re.search(r"^\s*(\d+) states, stored", output, re.MULTILINE)
    depth = re.search(r"depth reached (\d+), errors: (\d+)", output)
    if states is None or depth is None:
        raise NoSpin(f"{name}: the verifier did not report: {output[-500:]}")
    violated = re.search(r"^pan:\d+: (.*?)(?: \(at depth \d+\))?$", output, re.MULTILINE)
    # The verifier reports an incomplete search, which proves nothing.
    incomplete = re.search(
        r"search not completed|max search depth too small", output, re.IGNORECASE
    )
    if incomplete and not int(depth[2]):
        raise NoSpin(f"{name}: the search is not complete: {output[-500:]}")
    text = "" if violated is None else " ".join(violated[1].split())
    return SpinResult(name, claim, int(states[1]), int(depth[1]), int(depth[2]), text)


def report() -> dict[str, object]:
    """All runs, and whether all have the expected result."""
    holds = [unchanged("safety"), unchanged("liveness")]
    refuted = [planted(bug) for bug in PLANTED] + [reached(state) for state in REACHED]
    return {
        "model_states": holds[0].states,
        "ok": not any(run.errors for run in holds) and all(run.errors for run in refuted),
        "holds": [run._asdict() for run in holds],
        "refuted": [run._asdict() for run in refuted],
    }


def _print_table(found: dict[str, object]) -> None:
    print(f"{'run':<26}{'claim':<10}{'states':>10}{'depth':>7}{'errors':>8}  must")
    for kind, expected in (("holds", "hold"), ("refuted", "be violated")):
        runs = found[kind]
        assert isinstance(runs, list)
        for run in runs:
            figures = f"{run['states']:>10}{run['depth']:>7}{run['errors']:>8}"
            print(f"{run['name']:<26}{run['claim']:<10}{figures}  {expected}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.model.checker", description=__doc__)
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    chosen = parser.parse_args()
    try:
        found = report()
    except NoSpin as fault:
        print(f"model: {fault}", file=sys.stderr)
        return 2
    if chosen.output == "json":
        print(json.dumps(found, indent=2))
    else:
        _print_table(found)
        print("all runs have the expected result" if found["ok"] else "THE MODEL IS WRONG")
    return 0 if found["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
