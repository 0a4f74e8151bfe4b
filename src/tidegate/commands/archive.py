"""Keep the tables small: move what ended long ago to the archive, beside everything that runs."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import psycopg
import typer

from tidegate.commands.console import DEFAULT_DIRECTORY, CommandError, OutputOptions, endpoints
from tidegate.commands.programs import ConfigFile, Database
from tidegate.commands.progress import bar
from tidegate.core.ids import HORIZON_S
from tidegate.settings import read_settings
from tidegate.store.archive import BATCH, ArchiveAges, ArchivedBatch, ArchiveRefused
from tidegate.store.archive import archive as archived

DAY_S = 24 * 3600
# Twice as long as systems remember operations, at the least: nobody asks about it any more.
LEAST_DAYS = 2 * HORIZON_S // DAY_S
KEEP_CIDS_DAYS = 400


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    older_than: Annotated[
        int,
        typer.Option(min=LEAST_DAYS, metavar="DAYS", help="Since its end: then it is moved."),
    ]
    keep_cids: Annotated[
        int,
        typer.Option(min=LEAST_DAYS, metavar="DAYS", help="Since its end: then it may be reused."),
    ] = KEEP_CIDS_DAYS
    batch: Annotated[
        int, typer.Option(min=1, max=10_000, help="Transfers moved in one transaction.")
    ] = BATCH


@dataclass(frozen=True, slots=True)
class StoreOptions:
    database: Database = None
    directory: Annotated[
        Path | None, typer.Option("--data", help="The directory of a running `tidegate up`.")
    ] = None
    schema: Annotated[str | None, typer.Option(help="The store's schema.")] = None
    config: ConfigFile = None


def archive(old: ArchiveOptions, where: StoreOptions, printing: OutputOptions) -> None:
    """Move transfers that ended long ago, with their history, to the archive."""
    if old.keep_cids < old.older_than:
        said = f"--keep-cids ({KEEP_CIDS_DAYS} if not given) must not be less than --older-than"
        raise CommandError(said, 2)
    database, schema = store_of(where)
    moved = ArchivedBatch()
    try:
        with bar() as shown:
            task = shown.add_task("archiving", total=None)
            ages = ArchiveAges(old.older_than * DAY_S, old.keep_cids * DAY_S)
            for batch in archived(database, schema, ages, old.batch):
                moved = ArchivedBatch(*(sum(pair) for pair in zip(moved, batch, strict=True)))
                shown.update(task, completed=moved.transfers + moved.cids)
    except (ArchiveRefused, psycopg.Error) as fault:
        kept = f"{moved.transfers} were moved before, and stay so"
        raise CommandError(f"cannot archive: {fault} ({kept})") from fault
    printing.tell(
        moved._asdict(),
        f"moved {moved.transfers} transfers with {moved.answers} answers;"
        f" dropped {moved.attempts} attempts; forgot {moved.cids} cids",
    )


def store_of(where: StoreOptions) -> tuple[str, str]:
    """The database that was named, or that of a running `up`, and the schema in it."""
    flags = {"database": where.database, "schema": where.schema}
    settings = read_settings(flags, os.environ, where.config, where.directory)
    named = where.database if where.directory else settings.database
    return named or endpoints(where.directory or DEFAULT_DIRECTORY)["postgres"], settings.schema
