"""The command that moves old transfers to the archive while everything runs."""

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
# At least twice as long as systems remember operations: no system asks about older transfers.
LEAST_DAYS = 2 * HORIZON_S // DAY_S
KEEP_CIDS_DAYS = 400


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    older_than: Annotated[
        int,
        typer.Option(
            min=LEAST_DAYS, metavar="DAYS", help="Move transfers that ended this long ago."
        ),
    ]
    keep_cids: Annotated[
        int,
        typer.Option(
            min=LEAST_DAYS,
            metavar="DAYS",
            help="Forget cids of transfers that ended this long ago.",
        ),
    ] = KEEP_CIDS_DAYS
    batch: Annotated[int, typer.Option(min=1, max=10_000, help="Transfers per transaction.")] = (
        BATCH
    )


@dataclass(frozen=True, slots=True)
class StoreOptions:
    database: Database = None
    directory: Annotated[
        Path | None, typer.Option("--data", help="The directory of a running `tidegate up`.")
    ] = None
    schema: Annotated[str | None, typer.Option(help="The store's schema.")] = None
    config: ConfigFile = None


def archive(chosen: ArchiveOptions, where: StoreOptions, printing: OutputOptions) -> None:
    """Move old transfers with their history to the archive."""
    if chosen.keep_cids < chosen.older_than:
        message = f"--keep-cids (default {KEEP_CIDS_DAYS}) must not be less than --older-than"
        raise CommandError(message, 2)
    database, schema = store_of(where)
    moved = ArchivedBatch()
    try:
        with bar() as progress:
            task = progress.add_task("archiving", total=None)
            ages = ArchiveAges(chosen.older_than * DAY_S, chosen.keep_cids * DAY_S)
            for batch in archived(database, schema, ages, chosen.batch):
                moved = ArchivedBatch(*(sum(pair) for pair in zip(moved, batch, strict=True)))
                progress.update(task, completed=moved.transfers + moved.cids)
    except (ArchiveRefused, psycopg.Error) as fault:
        earlier = f"{moved.transfers} transfers were moved before this error"
        raise CommandError(f"cannot archive: {fault} ({earlier})") from fault
    printing.show(
        moved._asdict(),
        f"moved {moved.transfers} transfers with {moved.answers} answers;"
        f" dropped {moved.attempts} attempts; forgot {moved.cids} cids",
    )


def store_of(where: StoreOptions) -> tuple[str, str]:
    """Return the database and the schema: those given, or those of a running `tidegate up`."""
    flags = {"database": where.database, "schema": where.schema}
    settings = read_settings(flags, os.environ, where.config, where.directory)
    database = where.database if where.directory else settings.database
    return database or endpoints(where.directory or DEFAULT_DIRECTORY)["postgres"], settings.schema
