"""Put the certificate to any system: what held, what failed and why, what could not be tried."""

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
    attempt,
    holds,
    load,
    print_page,
)
from tidegate.commands.console import CommandError, OutputOptions, console, print_json


@dataclass(frozen=True, slots=True)
class CertifyOptions:
    factory: Annotated[
        str, typer.Argument(metavar="MODULE:FACTORY", help="Makes the bench; see docs/adapters.md")
    ]
    only: Annotated[
        list[str] | None, typer.Option("--only", help="A check by its name; may be repeated.")
    ] = None


def certify(candidate: CertifyOptions, printing: OutputOptions) -> None:
    """Try a system on duplicates, crashes, lost replies, races: may it be trusted with money?"""
    sys.path.insert(0, "")  # As `python -m` does: the candidate is in the directory we are in.
    try:
        factory = load(candidate.factory)
    except FactoryNotFound as fault:
        raise CommandError(str(fault), 2) from fault
    findings = _findings(factory, _wanted(candidate.only))
    if printing.as_json:
        print_json(as_json(candidate.factory, findings))
    else:
        print_page(console(), candidate.factory, findings)
    if not holds(findings):
        raise typer.Exit(1)


def _findings(factory: Factory, checks: list[Check]) -> list[CheckResult]:
    errors = Console(stderr=True)
    return [
        asyncio.run(attempt(check, factory, ULID().to_uuid()))
        for check in track(
            checks, "certifying", console=errors, transient=True, disable=not errors.is_terminal
        )
    ]


def _wanted(only: list[str] | None) -> list[Check]:
    by_name = {check.name: check for check in CHECKS}
    if unknown := sorted(set(only or ()) - by_name.keys()):
        raise CommandError(f"no check is named {unknown[0]}; there are: {', '.join(by_name)}", 2)
    return [by_name[name] for name in only] if only else list(CHECKS)
