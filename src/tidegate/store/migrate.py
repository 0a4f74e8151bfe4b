"""Migrations: numbered files, each applied once, in its own transaction."""

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
# The role that may use the guild economy from SQL. The engine's tables are not open to it.
ECONOMY_ROLE = "tidegate_economy"
ROLES = (ENGINE_ROLE, "tidegate_auditor", MIGRATOR_ROLE, ECONOMY_ROLE, "tidegate_inbox")
MAX_LOCK_WAIT = "10s"
LOCK = 7_305_117_894  # The advisory lock that makes two migrations at once wait for each other.


class Migration(NamedTuple):
    number: int
    name: str
    statements: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.statements.encode()).hexdigest()


def migrations(folder: str) -> list[Migration]:
    paths = files("tidegate.store").joinpath("migrations", folder).iterdir()
    sources = sorted(
        (path.name, path.read_text(encoding="utf-8"))
        for path in paths
        if path.name.endswith(".sql")
    )
    return [Migration(int(name[:4]), name.removesuffix(".sql"), text) for name, text in sources]


def migrate(
    conninfo: str,
    schema: str,
    flows: Iterable[Flow],
    on_applied: Callable[[str], None] = lambda _: None,
    *,
    economy: bool = False,
) -> list[str]:
    """Bring a store up to date and install the flows. Return the names of the migrations and flows
    that were applied; `on_applied` is called with each of them at once. With `economy`, install the
    guild economy, if no store of this database has it.
    """
    applied: list[str] = []

    def add(name: str) -> None:
        applied.append(name)
        on_applied(name)

    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("SELECT pg_advisory_lock(%s)", (LOCK,))
        # Set after the advisory lock: waiting for another migration may take long, but waiting for
        # a table lock must not, because live traffic would queue behind it.
        connection.execute("SELECT set_config('lock_timeout', %s, false)", (MAX_LOCK_WAIT,))
        _create_roles(connection)
        _become_migrator(connection)
        for folder, *path in _folders(connection, schema, economy=economy):
            for name in _migrate_schema(connection, folder, path):
                add(f"{path[0]}: {name}")
        for name in install(connection, (schema, SHARED_SCHEMA), list(flows)):
            add(f"{schema}: {name}")
    return applied


def _folders(
    connection: psycopg.Connection, schema: str, *, economy: bool
) -> Iterator[tuple[str, ...]]:
    """The folders to apply. Each comes with its schema and the rest of its search path."""
    yield "shared", SHARED_SCHEMA
    # The temporary schema is last, so that a caller's temporary tables cannot hide our tables.
    yield "store", schema, SHARED_SCHEMA, "pg_temp"
    [(exists,)] = connection.execute("SELECT to_regclass('economy.home') IS NOT NULL").fetchall()
    home = connection.execute("SELECT store FROM economy.home").fetchone() if exists else None
    # Once a store has the guild economy it keeps it. A second store of a database cannot get it.
    if home == (schema,) or (economy and home is None):
        yield ECONOMY, ECONOMY, schema, SHARED_SCHEMA, "pg_temp"


def _create_roles(connection: psycopg.Connection) -> None:
    for role in ROLES:
        exists = connection.execute("SELECT FROM pg_roles WHERE rolname = %s", (role,)).fetchone()
        if exists is None:
            # All databases of a server share its roles: another migration may create one first.
            with suppress(psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation):
                connection.execute(sql.SQL("CREATE ROLE {} NOLOGIN").format(sql.Identifier(role)))


def _become_migrator(connection: psycopg.Connection) -> None:
    """Let one role own all that the migrations create, whichever user runs them. So the engine's
    role owns nothing.
    """
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
    applied: Mapping[int, str] = dict(rows)
    ours = migrations(folder)
    for newer in sorted(set(applied) - {migration.number for migration in ours}):
        raise MigrationRefused(
            f"schema {schema} has migration {newer}, which this version does not know:"
            " run a newer tidegate"
        )
    for migration in ours:
        if migration.number not in applied:
            _apply(connection, path, migration)
            yield migration.name
        elif applied[migration.number] != migration.checksum:
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
