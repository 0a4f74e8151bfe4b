"""Who a store is, and which database the trading core takes it from."""

import asyncio
import os
from dataclasses import dataclass
from typing import Annotated
from uuid import UUID

import psycopg
import typer

from tidegate.app import administrator, fresh_identity
from tidegate.commands.archive import StoreOptions, store_of
from tidegate.commands.console import DEFAULT_DIRECTORY, CommandError, OutputOptions, endpoints
from tidegate.core.answers import Unreachable
from tidegate.core.ports import StoreFault
from tidegate.core.wire import Binding
from tidegate.settings import read_settings
from tidegate.store import store_identity
from tidegate.store.postgres import PostgresStore


@dataclass(frozen=True, slots=True)
class RebindOptions:
    core: Annotated[str | None, typer.Option(help="unix:PATH or tcp:HOST:PORT")] = None
    instead_of: Annotated[
        UUID | None,
        typer.Option(help="For a copy of the core's directory: the store that it served."),
    ] = None


def new_identity(where: StoreOptions, printing: OutputOptions) -> None:
    """Make a copied database a store of its own, which the original's core will refuse."""
    database, schema = store_of(where)
    try:
        before, after = store_identity.renew(database, schema, fresh_identity())
    except psycopg.Error as fault:
        raise CommandError(f"cannot give the store a new identity: {fault}") from fault
    printing.tell(
        {"before": str(before), "store": str(after)},
        f"this store was {before} and is {after} from now on; restart what runs on it",
    )


def confirm_store(where: StoreOptions, served: RebindOptions, printing: OutputOptions) -> None:
    """Tell the trading core that this database is the restored one, and the old one is gone.

    Workers of the old database that are still connected are cut off, and can do nothing more.
    """
    database, schema = store_of(where)
    try:
        wanted, bound = asyncio.run(_rebound(database, schema, _core(where, served), served))
    except (Unreachable, StoreFault) as fault:
        raise CommandError(f"cannot confirm: {fault}") from fault
    if bound != wanted:
        raise CommandError(f"the core serves store {bound.store or 'nobody yet'}, and goes on so")
    printing.tell(
        {"store": bound.store, "place": bound.place},
        f"the core serves store {bound.store} in database {bound.place} from now on",
    )


async def _rebound(
    database: str, schema: str, address: str, served: RebindOptions
) -> tuple[Binding, Binding]:
    async with PostgresStore(database, schema) as store:
        core, binding = await administrator(store, address)
        try:
            before = str(served.instead_of or binding.store)
            return binding, await core.rebind(before, binding)
        finally:
            await core.close()


def _core(where: StoreOptions, served: RebindOptions) -> str:
    flags = {"core": served.core}
    settings = read_settings(flags, os.environ, where.config, where.directory)
    return settings.core or endpoints(where.directory or DEFAULT_DIRECTORY)["core"]
