"""The command line: every command by its name, and errors in one line."""

import os
import sys
from importlib.metadata import version
from typing import Annotated

import typer
from typer.exceptions import TyperException

from tidegate.client import ApiProblem, NoAnswer, NoKeys
from tidegate.commands import (
    archive,
    certify,
    demo,
    desk,
    doctor,
    money,
    pool,
    programs,
    simulate,
)
from tidegate.commands.access import Complaint
from tidegate.commands.typed import typed
from tidegate.settings import WrongSetting

cli = typer.Typer(
    help="Move money between systems that cannot share a transaction.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"tidegate {version('tidegate')}")
        raise typer.Exit


@cli.callback()
def top(
    _: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Say which this is."
        ),
    ] = False,
) -> None:
    """Move money between systems that cannot share a transaction."""


for command in (
    programs.up,
    demo.demo,
    programs.api,
    programs.worker,
    programs.core,
    programs.migrate,
    archive.archive,
    money.token,
    money.fund,
    money.transfer,
    money.balances,
    desk.show,
    desk.tail,
    desk.stuck,
    desk.retry,
    desk.resolve,
    desk.confirm,
    desk.audit,
    desk.halt,
    desk.resume,
    desk.flows,
    doctor.doctor,
    simulate.simulate,
    certify.certify,
):
    cli.command()(typed(command))


members = typer.Typer(help="Pay members of a guild, through the transfer pool.")
for name, spoken in (("pay", pool.pay), ("show", pool.show), ("list", pool.list_)):
    members.command(name)(typed(spoken))
cli.add_typer(members, name="pool")


def main() -> None:
    os.umask(0o077)  # What we write is about money, and nobody else's to read.
    sys.exit(_run())


def _run() -> int:
    try:
        return cli(standalone_mode=False) or 0
    except Complaint as complaint:
        return _complain(complaint, complaint.code)
    except (ApiProblem, NoAnswer, NoKeys, OSError) as fault:
        return _complain(fault, 1)
    except WrongSetting as fault:
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
