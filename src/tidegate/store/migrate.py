"""Migrations: numbered files, each applied once, in a transaction of its own."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from typing import NamedTuple

import psycopg
from psycopg import sql

from tidegate.core.flow import Flow
from tidegate.store.flow_install import install
from tidegate.store.schemas import MigrationRefused, identifier, set_path
from tidegate.store.sessions import ENGINE_ROLE, SHARED_SCHEMA

MIGRATOR_ROLE = "tidegate_migrator"
ECONOMY = "economy"
# Who may use the guild economy from SQL; everything else is the engine's.
ECONOMY_ROLE = "tidegate_economy"
ROLES = (ENGINE_ROLE, "tidegate_auditor", MIGRATOR_ROLE, ECONOMY_ROLE, "tidegate_inbox")
MAX_LOCK_WAIT = "10s"
LOCK = 7_305_117_894  # Of this program alone: two migrations at once wait for each other.


class Migration(NamedTuple):
    number: int
    name: str
    statements: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.statements.encode()).hexdigest()


def migrations(folder: str) -> list[Migration]:
    found = files("tidegate.store").joinpath("migrations", folder).iterdir()
    named = sorted(
        (f.name, f.read_text(encoding="utf-8")) for f in found if f.name.endswith(".sql")
    )
    return [Migration(int(name[:4]), name.removesuffix(".sql"), text) for name, text in named]


def migrate(
    conninfo: str,
    schema: str,
    flows: Iterable[Flow],
    tell: Callable[[str], None] = lambda _: None,
) -> list[str]:
    """Bring a store up to date and install the flows; tell and return what was applied."""
    applied: list[str] = []

    def note(name: str) -> None:
        applied.append(name)
        tell(name)

    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("SELECT pg_advisory_lock(%s)", (LOCK,))
        # Only now: to wait for another migration is right, to queue before live traffic is not.
        connection.execute("SELECT set_config('lock_timeout', %s, false)", (MAX_LOCK_WAIT,))
        _create_roles(connection)
        _become_migrator(connection)
        for folder, *path in _wanted(connection, schema):
            for done in _migrate_schema(connection, folder, path):
                note(f"{path[0]}: {done}")
        for done in install(connection, (schema, SHARED_SCHEMA), list(flows)):
            note(f"{schema}: {done}")
    return applied


def _wanted(connection: psycopg.Connection, schema: str) -> Iterator[tuple[str, ...]]:
    """Which folder is for which schema, and which others its statements may name."""
    yield "shared", SHARED_SCHEMA
    # The temporary schema last: who calls our functions must not put tables before ours.
    yield "store", schema, SHARED_SCHEMA, "pg_temp"
    [(there,)] = connection.execute("SELECT to_regclass('economy.home') IS NOT NULL").fetchall()
    home = connection.execute("SELECT store FROM economy.home").fetchone() if there else None
    # The first store of a database has the guild economy; a second does not take it over.
    if home in (None, (schema,)):
        yield ECONOMY, ECONOMY, schema, SHARED_SCHEMA, "pg_temp"


def _create_roles(connection: psycopg.Connection) -> None:
    for role in ROLES:
        known = connection.execute("SELECT FROM pg_roles WHERE rolname = %s", (role,)).fetchone()
        if known is None:
            # Roles are the whole server's: a migration of another database may be faster.
            with suppress(psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation):
                connection.execute(sql.SQL("CREATE ROLE {} NOLOGIN").format(sql.Identifier(role)))


def _become_migrator(connection: psycopg.Connection) -> None:
    """All that we make belongs to one role, whoever runs the migration; the engine owns nothing."""
    [(member, creator)] = connection.execute(
        "SELECT pg_has_role(current_user, %(role)s, 'MEMBER'),"
        " has_database_privilege(%(role)s, current_database(), 'CREATE')",
        {"role": MIGRATOR_ROLE},
    ).fetchall()
    role = sql.Identifier(MIGRATOR_ROLE)
    if not member:
        connection.execute(sql.SQL("GRANT {} TO CURRENT_USER").format(role))
    if not creator:
        database = sql.Identifier(connection.info.dbname)
        connection.execute(sql.SQL("GRANT CREATE ON DATABASE {} TO {}").format(database, role))
    connection.execute(sql.SQL("SET ROLE {}").format(role))


def _migrate_schema(
    connection: psycopg.Connection, folder: str, path: Sequence[str]
) -> Iterator[str]:
    schema, name = path[0], identifier(path[0])
    with connection.transaction():
        connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(name))
        set_path(connection, path)
        connection.execute(
            "CREATE TABLE IF NOT EXISTS migrations (number integer PRIMARY KEY, name text NOT NULL,"
            " checksum text NOT NULL, at timestamptz NOT NULL DEFAULT now())"
        )
        rows = connection.execute("SELECT number, checksum FROM migrations").fetchall()
    known: Mapping[int, str] = dict(rows)
    ours = migrations(folder)
    for ahead in sorted(set(known) - {migration.number for migration in ours}):
        raise MigrationRefused(
            f"schema {schema} has migration {ahead}, which this version does not know:"
            " run a newer tidegate"
        )
    for migration in ours:
        if migration.number not in known:
            _apply(connection, path, migration)
            yield migration.name
        elif known[migration.number] != migration.checksum:
            raise MigrationRefused(f"migration {migration.name} was changed after it was applied")


def _apply(connection: psycopg.Connection, path: Sequence[str], migration: Migration) -> None:
    name = sql.Identifier(path[0])
    with connection.transaction():
        set_path(connection, path)
        connection.execute(migration.statements)
        readers = sql.SQL("tidegate_engine, tidegate_auditor")
        for grant in (
            "GRANT USAGE ON SCHEMA {} TO {}",
            "GRANT SELECT ON ALL TABLES IN SCHEMA {} TO {}",
        ):
            connection.execute(sql.SQL(grant).format(name, readers))
        connection.execute(
            "INSERT INTO migrations (number, name, checksum) VALUES (%s, %s, %s)",
            (migration.number, migration.name, migration.checksum),
        )
