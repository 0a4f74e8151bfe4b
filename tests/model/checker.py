"""Runs Spin over the model: `python -m tests.model.checker [-o json]`.

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
DEPTH = 100_000  # Of the search; a deeper one is an error, and not cut off in silence.
MEMORY_MB = 1_024

# Each plants one bug; the claim named beside it must catch it.
PLANTED = {
    "REFUND_ON_TIMEOUT": "safety",
    "REFUSAL_NOT_STORED": "safety",
    "NO_CAS": "safety",
    "CALL_BEFORE_PERSIST": "safety",
    "KEY_WITHOUT_VERSION": "safety",
    "NO_TOMBSTONE": "safety",
    "LEASE_FOR_EVER": "liveness",
}
# Claims hold easily where nothing happens: each of these must be reached.
REACHED = ("TARGET_PENDING", "COMPENSATING", "COMMITTED", "FAILED", "ROLLED_BACK")


class NoSpin(Exception):
    """Spin or the C compiler is missing, or says what nobody expects; one line tells which."""


class Found(NamedTuple):
    """What one run explored, and whether a claim was violated."""

    name: str
    claim: str
    states: int
    depth: int
    errors: int
    violated: str


def whole(claim: str) -> Found:
    """The model as it is."""
    return _verify(claim, claim, None)


def planted(bug: str) -> Found:
    return _verify(bug, PLANTED[bug], bug)


def reached(state: str) -> Found:
    """The same model with the claim that it never gets there."""
    return _verify(f"never {state}", "safety", f"NEVER_SEEN={state}")


def missing() -> str | None:
    """Why nothing can be verified here, if so."""
    absent = [program for program in ("spin", "gcc") if shutil.which(program) is None]
    if absent:
        return f"{' and '.join(absent)} not found: make model-tools installs them on Debian"
    return None


def _verify(name: str, claim: str, define: str | None) -> Found:
    if said := missing():
        raise NoSpin(said)
    defines = [f"-D{define}"] if define else []
    with tempfile.TemporaryDirectory(prefix="tidegate-model-") as directory:
        _run(["spin", *defines, "-a", str(MODEL)], directory)
        mode = ["-DSAFETY", "-DNOCLAIM"] if claim == "safety" else ["-DNFAIR=3"]
        bounds = [f"-DMEMLIM={MEMORY_MB}"]
        _run(["gcc", "-O2", "-w", *mode, *bounds, "-o", "pan", "pan.c"], directory)
        search = [] if claim == "safety" else ["-a", "-f"]
        said = _run(["./pan", "-b", f"-m{DEPTH}", "-w22", *search], directory)
    return _read(name, claim, said)


def _run(command: list[str], directory: str) -> str:
    done = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, timeout=STEP_S, check=False
    )
    if done.returncode != 0:
        raise NoSpin(f"{' '.join(command)} failed: {done.stdout[-500:]}{done.stderr[-500:]}")
    return done.stdout


def _read(name: str, claim: str, said: str) -> Found:
    states = re.search(r"^\s*(\d+) states, stored", said, re.MULTILINE)
    depth = re.search(r"depth reached (\d+), errors: (\d+)", said)
    if states is None or depth is None:
        raise NoSpin(f"{name}: the verifier did not report: {said[-500:]}")
    violated = re.search(r"^pan:\d+: (.*?)(?: \(at depth \d+\))?$", said, re.MULTILINE)
    # It says so itself when it has not looked everywhere; then it proves nothing.
    incomplete = re.search(r"search not completed|max search depth too small", said, re.IGNORECASE)
    if incomplete and not int(depth[2]):
        raise NoSpin(f"{name}: the search is not complete: {said[-500:]}")
    words = "" if violated is None else " ".join(violated[1].split())
    return Found(name, claim, int(states[1]), int(depth[1]), int(depth[2]), words)


def report() -> dict[str, object]:
    """Everything, and whether all of it is as it must be."""
    holds = [whole("safety"), whole("liveness")]
    refuted = [planted(bug) for bug in PLANTED] + [reached(state) for state in REACHED]
    return {
        "model_states": holds[0].states,
        "ok": not any(run.errors for run in holds) and all(run.errors for run in refuted),
        "holds": [run._asdict() for run in holds],
        "refuted": [run._asdict() for run in refuted],
    }


def _print_table(found: dict[str, object]) -> None:
    print(f"{'run':<26}{'claim':<10}{'states':>10}{'depth':>7}{'errors':>8}  must")
    for kind, wanted in (("holds", "hold"), ("refuted", "be violated")):
        runs = found[kind]
        assert isinstance(runs, list)
        for run in runs:
            figures = f"{run['states']:>10}{run['depth']:>7}{run['errors']:>8}"
            print(f"{run['name']:<26}{run['claim']:<10}{figures}  {wanted}")


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
        print("the model is as it must be" if found["ok"] else "THE MODEL IS WRONG")
    return 0 if found["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
