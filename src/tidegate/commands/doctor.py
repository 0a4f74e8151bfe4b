"""What is wrong with my set-up, in words."""

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
from tidegate.store.pool_schema import ailments
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


def doctor(patient: DoctorOptions, printing: OutputOptions) -> None:
    """Say what is wrong with this set-up, and what to do about it."""
    findings = list(examine(patient))
    if printing.as_json:
        print_json([finding._asdict() for finding in findings])
    else:
        for ok, what in findings:
            print(f"{'ok   ' if ok else 'WRONG'}  {what}")
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)


def examine(patient: DoctorOptions) -> Iterator[DoctorFinding]:
    try:
        settings = read_settings({}, os.environ, patient.config, patient.directory)
    except InvalidSetting as fault:
        yield wrong(f"settings: {fault}")
        return
    yield well("settings: all are known and allowed")
    yield from _programs(settings)
    yield _room(patient.directory)
    if not patient.directory.exists():
        yield _port(settings)
        return
    yield _keys(patient.directory)
    yield from _running(patient.directory, settings)


def _programs(settings: Settings) -> Iterator[DoctorFinding]:
    if settings.database is not None:
        yield from _database(settings.database)
        return
    try:
        found = find_binaries()
    except PostgresError as fault:
        yield wrong(str(fault))
        return
    version = ".".join(map(str, found.version))
    yield well(f"PostgreSQL: {version} in {found.directory}")


def _database(database: str) -> Iterator[DoctorFinding]:
    try:
        with psycopg.connect(database, connect_timeout=5) as connection:
            version = connection.info.server_version // 10_000
            yield well(f"database: PostgreSQL {version} answers")
            yield from map(wrong, ailments(connection))
    except psycopg.Error as fault:
        words = " ".join(str(fault).split())
        yield wrong(f"database: {words}; check DATABASE_URL, or unset it")


def _room(directory: Path) -> DoctorFinding:
    there = next(p for p in (directory.absolute(), *directory.absolute().parents) if p.exists())
    free = shutil.disk_usage(there).free
    if not os.access(there, os.W_OK | os.X_OK):
        return wrong(f"directory: {there} may not be written by this user")
    if free < LEAST_BYTES:
        return wrong(f"disk: {free >> 20} MiB are free below {there}: make room")
    return well(f"directory: {directory}, {free >> 30} GiB free")


def _keys(directory: Path) -> DoctorFinding:
    try:
        load_keyring(directory / "keys")
    except KeysNotFound as fault:
        return wrong(f"keys: {fault}")
    mode = (directory / "keys" / "private.pem").stat().st_mode & 0o077
    if mode:
        return wrong(f"keys: others may read them; chmod 600 {directory}/keys/private.pem")
    return well("keys: there, and nobody else's to read")


def _port(settings: Settings) -> DoctorFinding:
    try:
        free_port(settings.host, settings.port, 0.0)
    except CannotRun as fault:
        return wrong(str(fault))
    return well(f"port {settings.port}: free")


def _running(directory: Path, settings: Settings) -> Iterator[DoctorFinding]:
    try:
        found = endpoints(directory)
    except CommandError:
        yield well(f"nothing runs: start it with `tidegate up --data {directory}`")
        yield _port(settings)
        return
    for path in sorted((directory / "run").glob("*.pid")):
        yield _alive(path)
    if settings.database is None and found.get("postgres"):
        yield from _database(found["postgres"])
    with Client(found["api"], timeout_s=5.0) as client:
        said = client.readiness()
    if said is None:
        yield wrong(f"api: {found['api']} does not answer; see {directory}/log/api.log")
        return
    for halt in said.get("halts", ()):
        who = f"by {halt['by']} at {halt['at']}: {halt['reason']}"
        yield wrong(f"halted {who}; once put right, `tidegate resume REASON --halt {halt['id']}`")
    for lane, standing in said.get("lanes", {}).items():
        if standing != "open":
            yield wrong(f"{lane}: does not answer; see {directory}/log/{lane}.log")
    if said.get("database"):
        yield wrong(f"database: {said['database']}; see {directory}/postgres")
    if said.get("status") == "ok":
        yield well(f"api: {found['api']} serves")


def _alive(path: Path) -> DoctorFinding:
    pid = path.read_text().strip()
    if Path("/proc", pid).exists():
        return well(f"{path.stem}: runs as {pid}")
    return wrong(f"{path.stem}: {pid} is gone; `tidegate up` starts it again")
