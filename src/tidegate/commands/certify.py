"""The command that certifies a system: which checks passed, failed, or could not run."""

import asyncio
import sys
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from ulid import ULID

from tidegate.certify import (
    CHECKS,
    Check,
    CheckResult,
    Factory,
    FactoryNotFound,
    as_json,
    load,
    nothing_failed,
    print_report,
    run_check,
)
from tidegate.commands.console import CommandError, OutputOptions, console, print_json


@dataclass(frozen=True, slots=True)
class CertifyOptions:
    factory: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FACTORY", help="Creates the system under test; see docs/adapters.md"
        ),
    ]
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Run only this check; may be repeated.")
    ] = None


def certify(candidate: CertifyOptions, printing: OutputOptions) -> None:
    """Check that a system handles duplicates, crashes, lost replies and races correctly."""
    sys.path.insert(0, "")  # Find modules in the current directory, as `python -m` does.
    try:
        factory = load(candidate.factory)
    except FactoryNotFound as fault:
        raise CommandError(str(fault), 2) from fault
    results = _results(factory, _selected(candidate.only))
    if printing.as_json:
        print_json(as_json(candidate.factory, results))
    else:
        print_report(console(), candidate.factory, results)
    if not nothing_failed(results):
        raise typer.Exit(1)


def _results(factory: Factory, checks: list[Check]) -> list[CheckResult]:
    errors = Console(stderr=True)
    return [
        asyncio.run(run_check(check, factory, ULID().to_uuid()))
        for check in track(
            checks, "certifying", console=errors, transient=True, disable=not errors.is_terminal
        )
    ]


def _selected(only: list[str] | None) -> list[Check]:
    by_name = {check.name: check for check in CHECKS}
    if unknown := sorted(set(only or ()) - by_name.keys()):
        raise CommandError(f"no check is named {unknown[0]}; choose from: {', '.join(by_name)}", 2)
    return [by_name[name] for name in only] if only else list(CHECKS)
