"""The command line: every command by its name, and errors in one line."""

import os
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Annotated

import typer
from typer.exceptions import TyperException

from tidegate.client import ApiProblem, KeysNotFound, OutcomeUnknown
from tidegate.commands.console import CommandError
from tidegate.commands.typed_options import typed
from tidegate.settings import InvalidSetting

# Every command, in the order of the help, and the module it is in.
COMMANDS = {
    "up": "programs",
    "demo": "demo",
    "api": "programs",
    "worker": "programs",
    "core": "core",
    "migrate": "programs",
    "archive": "archive",
    "store": "store",
    "token": "money",
    "fund": "money",
    "transfer": "money",
    "balances": "money",
    "show": "desk",
    "tail": "desk",
    "stuck": "desk",
    "retry": "desk",
    "resolve": "desk",
    "confirm": "desk",
    "audit": "desk",
    "halt": "desk",
    "resume": "desk",
    "flows": "desk",
    "doctor": "doctor",
    "simulate": "simulate",
    "certify": "certify",
    "pool": "pool",
}
GROUPS = {
    "store": (
        "Say who a store is, after its database was copied or restored.",
        {"new-identity": "new_identity", "confirm": "confirm_store"},
    ),
    "pool": (
        "Pay members of a guild, through the transfer pool.",
        {"pay": "pay", "show": "show", "list": "list_"},
    ),
}


def cli(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """The program, or as much of it as these commands are."""
    made = typer.Typer(
        help="Move money between systems that cannot share a transaction.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    made.callback()(top)
    for name in names:
        module = import_module(f"tidegate.commands.{COMMANDS[name]}")
        if name not in GROUPS:
            made.command()(typed(getattr(module, name)))
            continue
        text, functions = GROUPS[name]
        group = typer.Typer(help=text)
        for word, function in functions.items():
            group.command(word)(typed(getattr(module, function)))
        made.add_typer(group, name=name)
    return made


def typed_in(words: Sequence[str]) -> Iterable[str]:
    """What a line needs: one command, if it begins with one; all of them for help and mistakes."""
    if words == ["--version"]:
        return ()
    return words[:1] if words and words[0] in COMMANDS else COMMANDS


def _print_version(asked: bool) -> None:
    if asked:
        print(f"tidegate {version('tidegate')}")
        raise typer.Exit


def top(
    _: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Say which this is."
        ),
    ] = False,
) -> None:
    """Move money between systems that cannot share a transaction."""


def main() -> None:
    os.umask(0o077)  # What we write is about money, and nobody else's to read.
    sys.exit(_run())


def _run() -> int:
    try:
        return cli(typed_in(sys.argv[1:]))(standalone_mode=False) or 0
    except CommandError as complaint:
        return _complain(complaint, complaint.code)
    except (ApiProblem, OutcomeUnknown, KeysNotFound, OSError) as fault:
        return _complain(fault, 1)
    except InvalidSetting as fault:
        return _complain(fault, 2)
    except TyperException as fault:
        where = getattr(getattr(fault, "ctx", None), "command_path", "tidegate")
        said = fault.format_message().rstrip(".")
        return _complain(f"{said}: see `{where} --help`", fault.exit_code)
    except typer.Abort:
        return 130


def _complain(fault: Exception | str, code: int) -> int:
    print(f"tidegate: {' '.join(str(fault).split())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
