"""The commands that run services: everything on one machine, or one part in production."""

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import psycopg
import typer
import uvloop

from tidegate.app import SCHEMA, all_flows
from tidegate.commands.console import CommandError, OutputOptions
from tidegate.commands.progress import bar
from tidegate.core.ports import StoreFault
from tidegate.service.shared_memory import SharedMemory
from tidegate.serving import SharedPortMember, serve_api, serve_worker, start_log
from tidegate.settings import Settings, read_settings
from tidegate.store.migrate import migrate as migrated
from tidegate.store.migrate import migrations
from tidegate.store.schemas import MigrationRefused
from tidegate.supervisor.api_processes import serve_shared_port
from tidegate.supervisor.supervisor import run

ConfigFile = Annotated[Path | None, typer.Option("--config", help="A TOML file of settings.")]
Database = Annotated[str | None, typer.Option(help="Default: DATABASE_URL.")]


@dataclass(frozen=True, slots=True)
class UpOptions:
    directory: Annotated[
        Path | None, typer.Option("--data", help="The directory for all files. Default: ./data.")
    ] = None
    port: Annotated[
        int | None, typer.Option(help="Port of the API. Default: 8080; 0: any free port.")
    ] = None
    bare: Annotated[bool, typer.Option("--bare", help="Deposit no demo money.")] = False
    workers: Annotated[int | None, typer.Option(help="Number of separate workers.")] = None
    processes: Annotated[
        int | None, typer.Option(help="API processes. Default: one per two cores, at most 2.")
    ] = None
    config: ConfigFile = None


@dataclass(frozen=True, slots=True)
class ServerOptions:
    database: Database = None
    core: Annotated[str | None, typer.Option(help="unix:PATH or tcp:HOST:PORT")] = None
    schema: Annotated[str | None, typer.Option(help="The store's schema.")] = None
    config: ConfigFile = None


@dataclass(frozen=True, slots=True)
class ListenOptions:
    host: Annotated[str | None, typer.Option(help="Default: 127.0.0.1.")] = None
    port: Annotated[int | None, typer.Option(help="Default: 8080.")] = None
    processes: Annotated[
        int | None, typer.Option(help="Processes that serve the port. Default: 1.")
    ] = None


@dataclass(frozen=True, slots=True)
class SharedPortOptions:
    """Hidden options that the parent of several API processes passes to each of them."""

    sibling: Annotated[int | None, typer.Option(hidden=True)] = None
    memory: Annotated[int | None, typer.Option(hidden=True)] = None


@dataclass(frozen=True, slots=True)
class WorkerListenOptions:
    """The address of a worker's health and metrics."""

    host: Annotated[str | None, typer.Option(help="Default: 127.0.0.1.")] = None
    port: Annotated[int | None, typer.Option(help="Default: any free port.")] = None


@dataclass(frozen=True, slots=True)
class MigrateOptions:
    database: Database = None
    schema: Annotated[str, typer.Option(help="The store's schema.")] = SCHEMA
    economy: Annotated[
        bool, typer.Option("--economy", help="Install the schema of the guild economy as well.")
    ] = False
    config: ConfigFile = None


def up(chosen: UpOptions) -> None:
    """Run everything on this machine until Ctrl-C."""
    flags = {
        "directory": None if chosen.directory is None else str(chosen.directory),
        "port": chosen.port,
        "workers": chosen.workers,
        "processes": chosen.processes,
    }
    settings = read_settings(flags, os.environ, chosen.config, chosen.directory)
    raise typer.Exit(run(settings, bare=chosen.bare))


def api(chosen: ServerOptions, listening: ListenOptions, shared: SharedPortOptions) -> None:
    """Run the HTTP API with an engine, in one process or in several on one port."""
    flags = {"host": listening.host, "port": listening.port, "processes": listening.processes}
    settings, number, memory = _start(chosen, flags), shared.sibling, shared.memory
    if number is not None and memory is not None:
        start_log(settings.log_format, sibling=number)
        port = settings.health_ports[number - 1]
        _serve(serve_api(settings, SharedPortMember(number, port, SharedMemory(memory))))
    elif (settings.processes or 1) > 1:
        raise typer.Exit(serve_shared_port(settings))
    else:
        _serve(serve_api(settings))


def worker(chosen: ServerOptions, listening: WorkerListenOptions) -> None:
    """Run an engine without the API: it completes open transfers."""
    _serve(serve_worker(_start(chosen, {"host": listening.host, "worker_port": listening.port})))


def migrate(chosen: MigrateOptions, printing: OutputOptions) -> None:
    """Create or update the tables of a store and install its flows."""
    flags = {"database": chosen.database, "economy": chosen.economy or None}
    settings = read_settings(flags, os.environ, chosen.config)
    database, flows = _database(settings), list(all_flows())
    folders = ["shared", "store", *(["economy"] if settings.economy else [])]
    total = len(flows) + sum(len(migrations(folder)) for folder in folders)
    try:
        with bar() as progress:
            task = progress.add_task("migrating", total=total)
            applied = migrated(
                database,
                chosen.schema,
                flows,
                lambda _: progress.advance(task),
                economy=settings.economy,
            )
    except (MigrationRefused, psycopg.Error) as fault:
        raise CommandError(f"cannot migrate: {fault}") from fault
    printing.show({"applied": applied}, "\n".join(applied) or "up to date")


def _start(chosen: ServerOptions, more: Mapping[str, object]) -> Settings:
    """Read the settings and start the log."""
    flags = {"database": chosen.database, "core": chosen.core, "schema": chosen.schema, **more}
    settings = read_settings(flags, os.environ, chosen.config)
    start_log(settings.log_format)
    return msgspec.structs.replace(settings, database=_database(settings))


def _database(settings: Settings) -> str:
    if settings.database is None:
        raise CommandError("no database is set: set DATABASE_URL, or use `tidegate up`")
    return settings.database


def _serve(service: Coroutine[None, None, None]) -> None:
    # Uvicorn raises the signal again after its shutdown. Exit then by SystemExit, so that open
    # resources are still closed.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(service)
    except StoreFault as fault:
        raise CommandError(str(fault)) from fault
