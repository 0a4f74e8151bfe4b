"""The command line."""

import os
import sys
from pathlib import Path
from typing import Annotated

import psycopg
import typer

from tidegate.app import SCHEMA, all_flows
from tidegate.flows import FLOWS
from tidegate.store.migrate import MigrationRefused, migrate
from tidegate.trading_core import server

cli = typer.Typer(
    help="Move money between systems that cannot share a transaction.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@cli.command()
def core(
    directory: Annotated[Path, typer.Option("--data", help="The core's own directory.")],
    listen: Annotated[str, typer.Option(help="unix:PATH or tcp:HOST:PORT")],
) -> None:
    """Run the trading core: balances in memory, every answer durable first."""
    directory.mkdir(parents=True, exist_ok=True)
    raise typer.Exit(server.run(directory, listen))


@cli.command(name="migrate")
def migrate_store(
    database: Annotated[
        str, typer.Option(help="The database; DATABASE_URL if not given.", envvar="DATABASE_URL")
    ],
    schema: Annotated[str, typer.Option(help="The store's schema.")] = SCHEMA,
) -> None:
    """Make or update the tables of a store and install its flows."""
    try:
        applied = migrate(database, schema, all_flows())
    except (MigrationRefused, psycopg.Error) as fault:
        print(f"cannot migrate: {fault}", file=sys.stderr)
        raise typer.Exit(1) from fault
    print("\n".join(applied) or "up to date")


@cli.command()
def flows() -> None:
    """Print every flow as a Mermaid diagram."""
    for flow in FLOWS.values():
        print(f"# {flow.name}\n{flow.mermaid()}")


def main() -> None:
    os.umask(0o077)  # What we write is about money, and nobody else's to read.
    cli()
