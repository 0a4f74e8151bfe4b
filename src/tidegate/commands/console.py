"""What all commands share: connecting to the API, printing results, and errors."""

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
    """The command failed; the message says why and what to do in one line."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code  # The exit code.


class OutputFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class ApiOptions:
    """The Tidegate to use: one that `tidegate up` runs in a directory, or any by its URL."""

    directory: Annotated[
        Path, typer.Option("--data", help="The directory of a running `tidegate up`.")
    ] = DEFAULT_DIRECTORY
    url: Annotated[
        str | None, typer.Option(envvar="TIDEGATE_URL", help="Use this API; set TIDEGATE_TOKEN.")
    ] = None

    def client(self, role: str, subject: int | str | None = None) -> Client:
        """Connect with a role. Without a subject, the subject is the login name."""
        if self.url is not None:
            bearer = os.environ.get("TIDEGATE_TOKEN")
            if not bearer:
                raise CommandError("with --url, set TIDEGATE_TOKEN to a token for that API", 2)
            if role == "user":
                refuse_other_user(bearer, subject)
            return Client(self.url, bearer)
        name = str(subject or getpass.getuser())
        return Client(endpoints(self.directory)["api"], token(self.directory, name, role))


@dataclass(frozen=True, slots=True)
class OutputOptions:
    output: Annotated[OutputFormat, typer.Option("--output", "-o", help="Output format.")] = (
        OutputFormat.TEXT
    )

    @property
    def as_json(self) -> bool:
        return self.output is OutputFormat.JSON

    def show(self, result: object, sentence: str) -> None:
        """Print the whole result as JSON, or the sentence as text."""
        if self.as_json:
            print_json(result)
        else:
            print(sentence)


def refuse_other_user(bearer: str, subject: int | str | None) -> None:
    """Refuse a token of another user: the API acts for the token's user, not for --user."""
    parsed = parse_token(bearer)
    if parsed is not None and (owner := parsed.claims.get("sub")) != str(subject):
        raise CommandError(f"TIDEGATE_TOKEN is a token of {owner!s:.40}, not of user {subject}", 2)


def endpoints(directory: Path) -> dict[str, str]:
    path = directory / "run" / "endpoints.json"
    try:
        addresses: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as fault:
        raise CommandError(
            f"no Tidegate runs on {directory}: start it with `tidegate up --data {directory}`,"
            " or choose another with --data or --url",
            2,
        ) from fault
    except (OSError, ValueError) as fault:
        raise CommandError(f"{path} cannot be read: {fault}", 2) from fault
    return addresses


def print_json(value: object) -> None:
    print(json.dumps(value, ensure_ascii=False))


def print_table(columns: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Print a table. It is as wide as needed, so that piped output is never cut."""
    table = Table(box=None, pad_edge=False)
    for name in columns:
        table.add_column(name, no_wrap=True)
    for row in rows:
        table.add_row(*("" if row.get(name) is None else str(row[name]) for name in columns))
    console().print(table)


@cache
def console() -> Console:
    """One console for all output: rich prints above a progress bar only on the same console."""
    out = Console(highlight=False)
    return out if out.is_terminal else Console(highlight=False, width=200)
