"""`python -m bench`: every case in turn, several rounds of it, and what came of it."""

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
# A tape is recorded for so many times as long as it is played: to play costs less than to record.
TAPE_TIMES = 5
FAULTS = (Failed, RuntimeError, OSError, subprocess.SubprocessError)
ROOM = Path(__file__).parent / ".run"


class Chosen(NamedTuple):
    cases: Sequence[Case]
    rounds: int
    timing: Timing
    out: Path


class Measured(NamedTuple):
    """What all rounds have left."""

    runs: dict[str, list[Run]]
    speeds: list[machine.Speed]


def main() -> None:
    end_in_order()
    chosen = choose()
    out, yardstick, spent = Console(), checksums(), Spent()
    with spent.on("installing peers"):
        missing = prepared(chosen.cases, out)
    able = [case for case in chosen.cases if case.environment not in missing]
    lost = {c.name: missing[c.environment] for c in chosen.cases if c.environment in missing}
    with World(ROOM) as world:
        settings = world.settings()
        out.print(" ".join(f"{name}={value}" for name, value in sorted(settings.items())))
        with spent.on("bases"):
            build_bases(able, world)
        with spent.on("tape"):
            tape = recorded(world, chosen.timing) if CEILING in able else ""
        runs, speeds = rounds(chosen._replace(cases=able), world, tape, (lost, spent))
    cases = {c.name: report.summary(c, runs[c.name]) for c in able if runs.get(c.name)}
    by_round = report.ratio_rounds(cases)
    fresh = {
        "measured": measured(chosen),
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
    whole = report.keep_scale(report.load(chosen.out), fresh)
    report.save(whole, chosen.out)
    chosen.out.with_suffix(".svg").write_text(plot.svg(whole["cases"]), encoding="utf-8")
    show(out, cases, lost, whole)
    out.print(f"written to {chosen.out} and {chosen.out.with_suffix('.svg').name}")


class Spent:
    """How long each part of the run took, so that what takes too long can be found."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._parts: dict[str, float] = {}

    @contextmanager
    def on(self, part: str) -> Iterator[None]:
        began_s = time.monotonic()
        try:
            yield
        finally:
            self._parts[part] = self._parts.get(part, 0.0) + time.monotonic() - began_s

    def rounded(self) -> dict[str, float]:
        whole = {"whole run": time.monotonic() - self._began_s}
        return {part: round(seconds, 1) for part, seconds in (whole | self._parts).items()}


def end_in_order() -> None:
    """Asked to end, we end what we have started first."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))


def choose() -> Chosen:
    words = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    words.add_argument("--quick", action="store_true", help="a second per case, one round: to try")
    words.add_argument(
        "--only", action="append", default=[], help="a case, or all whose names begin so"
    )
    words.add_argument("--rounds", type=int, help=f"{ROUNDS}, if not given")
    words.add_argument("--seconds", type=float, help="the window of one case")
    words.add_argument("--out", type=Path, help="results/latest.json after a whole run")
    words.add_argument("--list", action="store_true", help="name the cases")
    given = words.parse_args()
    if given.list:
        for case in CASES:
            sys.stdout.write(f"{case.name:28} {case.says}\n")
        raise SystemExit
    cases = [case for case in CASES if not given.only or any(meant(case, n) for n in given.only)]
    if not cases:
        words.error("no case begins so; see --list")
    timing = QUICK if given.quick else FULL
    timing = timing._replace(seconds=given.seconds or timing.seconds)
    # Ratios are of one whole run: what was only tried stays out of the last one.
    tried = given.quick or given.only
    out = given.out or (report.RESULTS / "quick.json" if tried else report.LATEST)
    return Chosen(cases, given.rounds or (1 if given.quick else ROUNDS), timing, out)


def meant(case: Case, name: str) -> bool:
    """The case of that name, or if there is none, all whose names begin so."""
    exact = any(each.name == name for each in CASES)
    return case.name == name if exact else case.name.startswith(name)


def prepared(cases: Sequence[Case], out: Console) -> dict[str, str]:
    """Install the peers; of each that cannot be had, why."""
    wanted = {case.environment for case in cases if case.environment}
    missing = environments.install(wanted, out.print)
    for name, reason in missing.items():
        out.print(f"[bold]missing: {name}[/bold]: {reason}")
    return missing


def build_bases(cases: Sequence[Case], world: World) -> None:
    """Before the first round, so that no case's time is spent on it."""
    for case in cases:
        with suppress(*FAULTS):  # The case itself tells why, when it tries again.
            base_of(case, world)


def rounds(chosen: Chosen, world: World, tape: str, told: tuple[dict[str, str], Spent]) -> Measured:
    """Interleaved: every case once, then every case again."""
    lost, spent = told
    runs: dict[str, list[Run]] = {case.name: [] for case in chosen.cases}
    speeds: list[machine.Speed] = []
    place = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=place) as shown:
        task = shown.add_task("bench", total=len(chosen.cases) * chosen.rounds)
        for number in range(chosen.rounds):
            with spent.on("machine's own speed"):
                speeds.append(machine.speed(world.connection))
            for case in chosen.cases:
                shown.update(task, description=f"round {number + 1}  {case.name:26}")
                try:
                    with spent.on(case.name):
                        runs[case.name].append(run(case, world, chosen.timing, Extra(tape)))
                except FAULTS as fault:
                    lost[case.name] = f"{type(fault).__name__}: {fault}"
                    place.print(f"[bold]{case.name} failed[/bold]: {fault}", highlight=False)
                shown.advance(task)
    return Measured(runs, speeds)


def recorded(world: World, timing: Timing) -> str:
    """What the ceiling plays, recorded once on a stage of its own."""
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


def measured(chosen: Chosen) -> dict[str, object]:
    return {**here(), "rounds": chosen.rounds, "seconds": chosen.timing.seconds}


def here() -> dict[str, object]:
    """When, on which machine and of which commit; with a sign if the tree was changed since."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    commit = subprocess.run(command, check=False, capture_output=True, text=True)
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit.stdout.strip(),
        "python": platform.python_version(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}",
    }


def show(out: Console, cases: report.Report, lost: dict[str, str], whole: report.Report) -> None:
    wide = out if out.is_terminal else Console(width=240)
    wide.print(report.table(cases, lost))
    wide.print(report.ratio_table(whole["ratios"], whole.get("ratio_ranges", {})))
    wide.print(f"the machine's own speed: {machine.told(whole['machine_speed'])}")
    wide.print(f"the whole run took {whole['spent_s']['whole run'] / 60:.1f} minutes")
    if not out.is_terminal:
        wide.print(json.dumps(whole["ratios"]))


if __name__ == "__main__":
    main()
