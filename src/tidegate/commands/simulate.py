"""The command that runs the simulation: many seeds, or one seed with its trace."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from tidegate.commands.console import OutputOptions, print_json
from tidegate.commands.progress import bar
from tidegate.simulation.result import SeedResult
from tidegate.simulation.runs import Tally, run_seeds, trace_lines
from tidegate.simulation.scenario import run


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds.")] = 1_000
    first: Annotated[int, typer.Option("--from", min=0, help="The first seed.")] = 0
    seed: Annotated[int | None, typer.Option(min=0, help="Run one seed, print its trace.")] = None
    jobs: Annotated[int, typer.Option(min=1, help="Number of processes.")] = os.cpu_count() or 1


def simulate(chosen: SimulateOptions, printing: OutputOptions) -> None:
    """Run the engine, the core and all flows in virtual time with injected failures."""
    if chosen.seed is not None:
        result = run(chosen.seed)
        _print_trace(result, printing)
        if result.fault is not None:
            raise typer.Exit(1)
        return
    with bar() as progress:
        task = progress.add_task("simulating", total=chosen.seeds)
        seeds = range(chosen.first, chosen.first + chosen.seeds)
        tally = run_seeds(seeds, chosen.jobs, lambda more: progress.advance(task, more))
    _report(tally, printing)


def _report(tally: Tally, printing: OutputOptions) -> None:
    if printing.as_json:
        commands = [replay(seed) for seed, _ in tally.failures]
        print_json(tally.figures() | {"revision": revision(), "replay": commands})
    else:
        for name, value in tally.figures().items():
            if name != "below_100":
                print(f"{name.replace('_', ' '):<26} {value}")
    if tally.failures:
        seed, text = tally.failures[0]
        if not printing.as_json:
            print("\n".join(trace_lines(run(seed))))
            print(f"seed {seed} at revision {revision()}: {text}")
            print("\n".join(f"replay: {replay(seed)}" for seed, _ in tally.failures))
        raise typer.Exit(1)


def _print_trace(result: SeedResult, printing: OutputOptions) -> None:
    verdict = "passed" if result.fault is None else f"FAILED: {result.fault}"
    if printing.as_json:
        trace = [{"at": at, "who": who, "what": what} for at, who, what in result.trace]
        summary = {"seed": result.seed, "hash": result.hash(), "revision": revision()}
        print_json(summary | {"fault": result.fault and str(result.fault), "trace": trace})
        return
    print("\n".join(trace_lines(result)))
    print(f"seed {result.seed} at revision {revision()}, hash {result.hash()[:16]}: {verdict}")


def replay(seed: int) -> str:
    """Return the command that runs a seed again and prints its trace."""
    return f"tidegate simulate --seed {seed}"


def revision() -> str:
    """Return the git revision of this source, if it is known."""
    git, here = shutil.which("git"), Path(__file__).parent
    if git is None:
        return "unknown"
    command = [git, "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    return result.stdout.strip() or "unknown"
