"""The command that checks the settings, programs, keys, ports and processes."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import psycopg
import typer

from tidegate.client import Client, KeysNotFound, load_keyring
from tidegate.commands.console import (
    DEFAULT_DIRECTORY,
    CommandError,
    OutputOptions,
    endpoints,
    print_json,
)
from tidegate.commands.programs import ConfigFile
from tidegate.postgres import PostgresError, find_binaries
from tidegate.settings import InvalidSetting, Settings, read_settings
from tidegate.store.pool_schema import pool_problems
from tidegate.supervisor.children import CannotRun
from tidegate.supervisor.supervisor import free_port

LEAST_BYTES = 2**30


class DoctorFinding(NamedTuple):
    ok: bool
    what: str


def well(what: str) -> DoctorFinding:
    return DoctorFinding(ok=True, what=what)


def wrong(what: str) -> DoctorFinding:
    return DoctorFinding(ok=False, what=what)


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    directory: Annotated[Path, typer.Option("--data", help="Of `tidegate up`.")] = DEFAULT_DIRECTORY
    config: ConfigFile = None


def doctor(chosen: DoctorOptions, printing: OutputOptions) -> None:
    """Check this installation and print each problem with its remedy."""
    findings = list(examine(chosen))
    if printing.as_json:
        print_json([finding._asdict() for finding in findings])
    else:
        for ok, what in findings:
            print(f"{'ok   ' if ok else 'WRONG'}  {what}")
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)


def examine(chosen: DoctorOptions) -> Iterator[DoctorFinding]:
    try:
        settings = read_settings({}, os.environ, chosen.config, chosen.directory)
    except InvalidSetting as fault:
        yield wrong(f"settings: {fault}")
        return
    yield well("settings: valid")
    yield from _programs(settings)
    yield _disk(chosen.directory)
    if not chosen.directory.exists():
        yield _port(settings)
        return
    yield _keys(chosen.directory)
    yield from _running(chosen.directory, settings)


def _programs(settings: Settings) -> Iterator[DoctorFinding]:
    if settings.database is not None:
        yield from _database(settings.database)
        return
    try:
        binaries = find_binaries()
    except PostgresError as fault:
        yield wrong(str(fault))
        return
    version = ".".join(map(str, binaries.version))
    yield well(f"PostgreSQL: {version} in {binaries.directory}")


def _database(database: str) -> Iterator[DoctorFinding]:
    try:
        with psycopg.connect(database, connect_timeout=5) as connection:
            version = connection.info.server_version // 10_000
            yield well(f"database: PostgreSQL {version} answers")
            yield from map(wrong, pool_problems(connection))
    except psycopg.Error as fault:
        message = " ".join(str(fault).split())
        yield wrong(f"database: {message}; check DATABASE_URL, or unset it")


def _disk(directory: Path) -> DoctorFinding:
    existing = next(p for p in (directory.absolute(), *directory.absolute().parents) if p.exists())
    free = shutil.disk_usage(existing).free
    if not os.access(existing, os.W_OK | os.X_OK):
        return wrong(f"directory: this user cannot write {existing}: change its permissions")
    if free < LEAST_BYTES:
        return wrong(f"disk: only {free >> 20} MiB are free in {existing}: free some space")
    return well(f"directory: {directory}, {free >> 30} GiB free")


def _keys(directory: Path) -> DoctorFinding:
    try:
        load_keyring(directory / "keys")
    except KeysNotFound as fault:
        return wrong(f"keys: {fault}")
    mode = (directory / "keys" / "private.pem").stat().st_mode & 0o077
    if mode:
        return wrong(f"keys: other users can read them; run chmod 600 {directory}/keys/private.pem")
    return well("keys: present, readable by their owner only")


def _port(settings: Settings) -> DoctorFinding:
    try:
        free_port(settings.host, settings.port, 0.0)
    except CannotRun as fault:
        return wrong(str(fault))
    return well(f"port {settings.port}: free")


def _running(directory: Path, settings: Settings) -> Iterator[DoctorFinding]:
    try:
        addresses = endpoints(directory)
    except CommandError:
        yield well(f"not running: start it with `tidegate up --data {directory}`")
        yield _port(settings)
        return
    for path in sorted((directory / "run").glob("*.pid")):
        yield _alive(path)
    if settings.database is None and addresses.get("postgres"):
        yield from _database(addresses["postgres"])
    with Client(addresses["api"], timeout_s=5.0) as client:
        readiness = client.readiness()
    if readiness is None:
        yield wrong(f"api: {addresses['api']} does not answer; see {directory}/log/api.log")
        return
    for halt in readiness.get("halts", ()):
        reason = f"by {halt['by']} at {halt['at']}: {halt['reason']}"
        remedy = f"`tidegate resume REASON --halt {halt['id']}`"
        yield wrong(f"halted {reason}; fix the problem, then run {remedy}")
    for lane, status in readiness.get("lanes", {}).items():
        if status != "open":
            yield wrong(f"{lane}: does not answer; see {directory}/log/{lane}.log")
    if readiness.get("database"):
        yield wrong(f"database: {readiness['database']}; see {directory}/postgres")
    if readiness.get("status") == "ok":
        yield well(f"api: {addresses['api']} serves")


def _alive(path: Path) -> DoctorFinding:
    pid = path.read_text().strip()
    if Path("/proc", pid).exists():
        return well(f"{path.stem}: running, pid {pid}")
    return wrong(f"{path.stem}: pid {pid} has died; `tidegate up` restarts it")
