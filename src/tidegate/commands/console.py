"""How a command reaches a Tidegate, how it prints, and how it complains."""

import getpass
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tidegate.client import Client
from tidegate.service.auth import parse_token
from tidegate.supervisor.demo_tokens import token

DEFAULT_DIRECTORY = Path("data")


class CommandError(Exception):
    """A command cannot do what it was asked; one line says why, and what to do."""

    def __init__(self, words: str, code: int = 1) -> None:
        super().__init__(words)
        self.code = code


class OutputFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class ApiOptions:
    """Which Tidegate is meant: one that `up` runs below a directory, or any by its address."""

    directory: Annotated[
        Path, typer.Option("--data", help="The directory of a running `tidegate up`.")
    ] = DEFAULT_DIRECTORY
    url: Annotated[
        str | None, typer.Option(envvar="TIDEGATE_URL", help="Another's; needs TIDEGATE_TOKEN.")
    ] = None

    def client(self, role: str, subject: int | str | None = None) -> Client:
        """As a user, or as somebody of the house: whoever is logged in, if not told otherwise."""
        if self.url is not None:
            given = os.environ.get("TIDEGATE_TOKEN")
            if not given:
                raise CommandError("with --url, set TIDEGATE_TOKEN to a token for it", 2)
            if role == "user":
                refuse_another(given, subject)
            return Client(self.url, given)
        name = str(subject or getpass.getuser())
        return Client(endpoints(self.directory)["api"], token(self.directory, name, role))


@dataclass(frozen=True, slots=True)
class OutputOptions:
    output: Annotated[OutputFormat, typer.Option("--output", "-o", help="How it is printed.")] = (
        OutputFormat.TEXT
    )

    @property
    def as_json(self) -> bool:
        return self.output is OutputFormat.JSON

    def tell(self, answer: object, sentence: str) -> None:
        """The whole answer for programs, or the sentence that it comes to for people."""
        if self.as_json:
            print_json(answer)
        else:
            print(sentence)


def refuse_another(given: str, subject: int | str | None) -> None:
    """The service acts for the token's user, whoever is named: so they must be the same."""
    read = parse_token(given)
    if read is not None and (owner := read.claims.get("sub")) != str(subject):
        raise CommandError(f"TIDEGATE_TOKEN is a token of {owner!s:.40}, not of user {subject}", 2)


def endpoints(directory: Path) -> dict[str, str]:
    path = directory / "run" / "endpoints.json"
    try:
        found: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as fault:
        raise CommandError(
            f"nothing runs on {directory}: start it with `tidegate up --data {directory}`,"
            " or name another with --data or --url",
            2,
        ) from fault
    except (OSError, ValueError) as fault:
        raise CommandError(f"{path} cannot be read: {fault}", 2) from fault
    return found


def print_json(value: object) -> None:
    print(json.dumps(value, ensure_ascii=False))


def print_table(columns: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """A table as wide as it needs: what is piped on is never cut."""
    table = Table(box=None, pad_edge=False)
    for name in columns:
        table.add_column(name, no_wrap=True)
    for row in rows:
        table.add_row(*("" if row.get(name) is None else str(row[name]) for name in columns))
    console().print(table)


@cache
def console() -> Console:
    """One for all: only who draws a bar knows how to print above it."""
    out = Console(highlight=False)
    return out if out.is_terminal else Console(highlight=False, width=200)
