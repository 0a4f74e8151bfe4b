"""`python -m bench`: runs every case in several rounds, and writes and prints the results."""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import machine, plot, report
from bench.cases import CASES, CEILING, Case
from bench.checksums import checksums
from bench.fronts import ROOT
from bench.peers import environments
from bench.recording import record_all
from bench.running import Extra, Failed, Run, Timing, base_of, run
from bench.spec import Spec
from bench.world import World

ROUNDS, FULL, QUICK = 3, Timing(3.5, 1.0), Timing(1.0, 0.5)
# A tape is recorded for longer than it is played by this factor: playing is faster than recording.
TAPE_TIMES = 5
FAULTS = (Failed, RuntimeError, OSError, subprocess.SubprocessError)
ROOM = Path(__file__).parent / ".run"


class Selection(NamedTuple):
    cases: Sequence[Case]
    rounds: int
    timing: Timing
    out: Path


class Measured(NamedTuple):
    """The results of all rounds."""

    runs: dict[str, list[Run]]
    speeds: list[machine.Speed]


def main() -> None:
    end_in_order()
    selection = selection_of_arguments()
    out, yardstick, spent = Console(), checksums(), Spent()
    with spent.on("installing peers"):
        missing = prepared(selection.cases, out)
    able = [case for case in selection.cases if case.environment not in missing]
    lost = {c.name: missing[c.environment] for c in selection.cases if c.environment in missing}
    with World(ROOM) as world:
        settings = world.settings()
        out.print(" ".join(f"{name}={value}" for name, value in sorted(settings.items())))
        with spent.on("bases"):
            build_bases(able, world)
        with spent.on("tape"):
            tape = recorded(world, selection.timing) if CEILING in able else ""
        runs, speeds = rounds(selection._replace(cases=able), world, tape, (lost, spent))
    cases = {c.name: report.summary(c, runs[c.name]) for c in able if runs.get(c.name)}
    by_round = report.ratio_rounds(cases)
    fresh = {
        "measured": measured(selection),
        "machine_speed": machine.summary(speeds),
        "checksums": yardstick,
        "postgresql": settings,
        "ratios": report.ratios(cases),
        "ratio_ranges": report.ranges(by_round),
        "ratio_rounds": by_round,
        "cases": cases,
        "missing": lost,
        "spent_s": spent.rounded(),
    }
    figures = report.keep_scale(report.load(selection.out), fresh)
    report.save(figures, selection.out)
    selection.out.with_suffix(".svg").write_text(plot.svg(figures["cases"]), encoding="utf-8")
    show(out, cases, lost, figures)
    out.print(f"written to {selection.out} and {selection.out.with_suffix('.svg').name}")


class Spent:
    """How long each part of the run took, to find slow parts."""

    def __init__(self) -> None:
        self._started_s = time.monotonic()
        self._parts: dict[str, float] = {}

    @contextmanager
    def on(self, part: str) -> Iterator[None]:
        started_s = time.monotonic()
        try:
            yield
        finally:
            self._parts[part] = self._parts.get(part, 0.0) + time.monotonic() - started_s

    def rounded(self) -> dict[str, float]:
        total = {"whole run": time.monotonic() - self._started_s}
        return {part: round(seconds, 1) for part, seconds in (total | self._parts).items()}


def end_in_order() -> None:
    """On SIGTERM, stop all child processes before exiting."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))


def selection_of_arguments() -> Selection:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="one second per case and one round, for a trial"
    )
    parser.add_argument(
        "--only", action="append", default=[], help="a case, or all cases with this prefix"
    )
    parser.add_argument("--rounds", type=int, help=f"{ROUNDS}, if not arguments")
    parser.add_argument("--seconds", type=float, help="the window of one case")
    parser.add_argument(
        "--out", type=Path, help="the default is results/latest.json for a full run"
    )
    parser.add_argument("--list", action="store_true", help="list the cases")
    arguments = parser.parse_args()
    if arguments.list:
        for case in CASES:
            sys.stdout.write(f"{case.name:28} {case.description}\n")
        raise SystemExit
    cases = [
        case
        for case in CASES
        if not arguments.only or any(is_selected(case, n) for n in arguments.only)
    ]
    if not cases:
        parser.error("no such case; see --list")
    timing = QUICK if arguments.quick else FULL
    timing = timing._replace(seconds=arguments.seconds or timing.seconds)
    # Ratios are of one full run: a trial or a partial run must not change its file.
    partial = arguments.quick or arguments.only
    out = arguments.out or (report.RESULTS / "quick.json" if partial else report.LATEST)
    return Selection(cases, arguments.rounds or (1 if arguments.quick else ROUNDS), timing, out)


def is_selected(case: Case, name: str) -> bool:
    """Whether the case has this name, or this prefix if no case has this name."""
    exact = any(other.name == name for other in CASES)
    return case.name == name if exact else case.name.startswith(name)


def prepared(cases: Sequence[Case], out: Console) -> dict[str, str]:
    """Install the peers. Return the reason for each that cannot be installed."""
    wanted = {case.environment for case in cases if case.environment}
    missing = environments.install(wanted, out.print)
    for name, reason in missing.items():
        out.print(f"[bold]missing: {name}[/bold]: {reason}")
    return missing


def build_bases(cases: Sequence[Case], world: World) -> None:
    """Build the databases before the first round, outside the time of any case."""
    for case in cases:
        with suppress(*FAULTS):  # The case tries again and reports the error.
            base_of(case, world)


def rounds(
    selection: Selection, world: World, tape: str, notes: tuple[dict[str, str], Spent]
) -> Measured:
    """Run all rounds, interleaved: every case once, then every case again."""
    lost, spent = notes
    runs: dict[str, list[Run]] = {case.name: [] for case in selection.cases}
    speeds: list[machine.Speed] = []
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as shown:
        task = shown.add_task("bench", total=len(selection.cases) * selection.rounds)
        for number in range(selection.rounds):
            with spent.on("machine's own speed"):
                speeds.append(machine.speed(world.connection))
            for case in selection.cases:
                shown.update(task, description=f"round {number + 1}  {case.name:26}")
                try:
                    with spent.on(case.name):
                        runs[case.name].append(run(case, world, selection.timing, Extra(tape)))
                except FAULTS as fault:
                    lost[case.name] = f"{type(fault).__name__}: {fault}"
                    console.print(f"[bold]{case.name} failed[/bold]: {fault}", highlight=False)
                shown.advance(task)
    return Measured(runs, speeds)


def recorded(world: World, timing: Timing) -> str:
    """Record the tape that the ceiling plays, on a separate stage."""
    tape = world.directory / "tape"
    with world.stage(base_of(CEILING, world)) as stage:
        spec = Spec(
            kind=CEILING.kind,
            database=stage.database,
            core=stage.core,
            inflight=CEILING.inflight,
            seconds=timing.seconds,
            warm_s=timing.warm_s,
            accounts=CEILING.accounts,
            tape=str(tape),
        )
        record_all(spec, TAPE_TIMES * (timing.seconds + timing.warm_s))
    return str(tape)


def measured(selection: Selection) -> dict[str, object]:
    return {**here(), "rounds": selection.rounds, "seconds": selection.timing.seconds}


def here() -> dict[str, object]:
    """The time, the machine and the commit, marked as dirty if the tree has changes."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    commit = subprocess.run(command, check=False, capture_output=True, text=True)
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit.stdout.strip(),
        "python": platform.python_version(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}",
    }


def show(out: Console, cases: report.Report, lost: dict[str, str], figures: report.Report) -> None:
    wide = out if out.is_terminal else Console(width=240)
    wide.print(report.table(cases, lost))
    wide.print(report.ratio_table(figures["ratios"], figures.get("ratio_ranges", {})))
    wide.print(f"the machine's own speed: {machine.text_of(figures['machine_speed'])}")
    wide.print(f"the whole run took {figures['spent_s']['whole run'] / 60:.1f} minutes")
    if not out.is_terminal:
        wide.print(json.dumps(figures["ratios"]))


if __name__ == "__main__":
    main()
