"""The commands for a copied or restored database: a store's identity and the core's binding."""

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
        typer.Option(help="The store that the core served, if its directory is a copy."),
    ] = None


def new_identity(where: StoreOptions, printing: OutputOptions) -> None:
    """Give a copied database a new store id, so that the original's core refuses it."""
    database, schema = store_of(where)
    try:
        before, after = store_identity.renew(database, schema, fresh_identity())
    except psycopg.Error as fault:
        raise CommandError(f"cannot give the store a new identity: {fault}") from fault
    printing.show(
        {"before": str(before), "store": str(after)},
        f"the store id was {before} and is now {after}; restart all processes that use it",
    )


def confirm_store(where: StoreOptions, served: RebindOptions, printing: OutputOptions) -> None:
    """Make the trading core serve this restored database instead of the old one.

    The core disconnects workers of the old database and refuses them from then on.
    """
    database, schema = store_of(where)
    try:
        wanted, bound = asyncio.run(_rebound(database, schema, _core(where, served), served))
    except (Unreachable, StoreFault) as fault:
        raise CommandError(f"cannot move the core to this database: {fault}") from fault
    if bound != wanted:
        raise CommandError(
            f"the core is still bound to store {bound.store or '(none yet)'}. If the directory of"
            " the core is a copy, name the store that it served: --instead-of STORE_ID"
        )
    printing.show(
        {"store": bound.store, "place": bound.place},
        f"the core now serves store {bound.store} in database {bound.place}",
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
