"""The proof by simulation, to be run by anybody: many seeds, or one with its whole story."""

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
from tidegate.simulation.runs import Tally, run_seeds, told
from tidegate.simulation.scenario import run


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    seeds: Annotated[int, typer.Option(min=1, help="How many.")] = 1_000
    first: Annotated[int, typer.Option("--from", min=0, help="The first of them.")] = 0
    seed: Annotated[int | None, typer.Option(min=0, help="Only this one, with its trace.")] = None
    jobs: Annotated[int, typer.Option(min=1, help="In how many processes.")] = os.cpu_count() or 1


def simulate(chosen: SimulateOptions, printing: OutputOptions) -> None:
    """Try the engine, the core and all flows against every failure, in virtual time."""
    if chosen.seed is not None:
        result = run(chosen.seed)
        _tell(result, printing)
        if result.fault is not None:
            raise typer.Exit(1)
        return
    with bar() as shown:
        task = shown.add_task("simulating", total=chosen.seeds)
        seeds = range(chosen.first, chosen.first + chosen.seeds)
        tally = run_seeds(seeds, chosen.jobs, lambda more: shown.advance(task, more))
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
            print("\n".join(told(run(seed))))
            print(f"seed {seed} at revision {revision()}: {text}")
            print("\n".join(f"again: {replay(seed)}" for seed, _ in tally.failures))
        raise typer.Exit(1)


def _tell(result: SeedResult, printing: OutputOptions) -> None:
    said = "nothing went wrong" if result.fault is None else f"WRONG: {result.fault}"
    if printing.as_json:
        trace = [{"at": at, "who": who, "what": what} for at, who, what in result.trace]
        story = {"seed": result.seed, "hash": result.hash(), "revision": revision()}
        print_json(story | {"fault": result.fault and str(result.fault), "trace": trace})
        return
    print("\n".join(told(result)))
    print(f"seed {result.seed} at revision {revision()}, hash {result.hash()[:16]}: {said}")


def replay(seed: int) -> str:
    """The command that runs a seed again, with its trace."""
    return f"tidegate simulate --seed {seed}"


def revision() -> str:
    """Which source this is, where it can be known."""
    git, here = shutil.which("git"), Path(__file__).parent
    if git is None:
        return "unknown"
    command = [git, "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    return said.stdout.strip() or "unknown"
