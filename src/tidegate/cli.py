"""The command line: the list of commands, and errors printed in one line."""

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

# Every command in the order of the help, and its module.
COMMANDS = {
    "up": "programs",
    "demo": "demo",
    "api": "programs",
    "worker": "programs",
    "core": "core",
    "migrate": "programs",
    "archive": "archive",
    "store": "identity",
    "token": "user",
    "fund": "user",
    "transfer": "user",
    "balances": "user",
    "show": "operator",
    "tail": "operator",
    "stuck": "operator",
    "retry": "operator",
    "resolve": "operator",
    "confirm": "operator",
    "audit": "operator",
    "halt": "operator",
    "resume": "operator",
    "flows": "operator",
    "doctor": "doctor",
    "simulate": "simulate",
    "certify": "certify",
    "pool": "pool",
}
GROUPS = {
    "store": (
        "Change a store's identity after its database was copied or restored.",
        {"new-identity": "new_identity", "confirm": "confirm_store"},
    ),
    "pool": (
        "Pay members of a guild through the transfer pool.",
        {"pay": "pay", "show": "show", "list": "list_"},
    ),
}


def cli(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """Build the program with these commands."""
    program = typer.Typer(
        help="Move money between systems that cannot share a transaction.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    program.callback()(top)
    for name in names:
        module = import_module(f"tidegate.commands.{COMMANDS[name]}")
        if name not in GROUPS:
            program.command()(typed(getattr(module, name)))
            continue
        text, functions = GROUPS[name]
        group = typer.Typer(help=text)
        for subcommand, function in functions.items():
            group.command(subcommand)(typed(getattr(module, function)))
        program.add_typer(group, name=name)
    return program


def needed_commands(arguments: Sequence[str]) -> Iterable[str]:
    """Load only the command that the line names, to start fast; all for help and mistakes."""
    if arguments == ["--version"]:
        return ()
    return arguments[:1] if arguments and arguments[0] in COMMANDS else COMMANDS


def _print_version(requested: bool) -> None:
    if requested:
        print(f"tidegate {version('tidegate')}")
        raise typer.Exit


def top(
    _: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Move money between systems that cannot share a transaction."""


def main() -> None:
    os.umask(0o077)  # Our files are about money: only their owner may read them.
    sys.exit(_run())


def _run() -> int:
    try:
        return cli(needed_commands(sys.argv[1:]))(standalone_mode=False) or 0
    except CommandError as fault:
        return _print_error(fault, fault.code)
    except (ApiProblem, OutcomeUnknown, KeysNotFound, OSError) as fault:
        return _print_error(fault, 1)
    except InvalidSetting as fault:
        return _print_error(fault, 2)
    except TyperException as fault:
        command = getattr(getattr(fault, "ctx", None), "command_path", "tidegate")
        message = fault.format_message().rstrip(".")
        return _print_error(f"{message}: see `{command} --help`", fault.exit_code)
    except typer.Abort:
        return 130


def _print_error(fault: Exception | str, code: int) -> int:
    print(f"tidegate: {' '.join(str(fault).split())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
