"""Migrations: numbered files, each applied once, in a transaction of its own."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from typing import NamedTuple

import psycopg
from psycopg import sql

from tidegate.core.flow import End, Flow
from tidegate.store.flow_checks import checksum, history_check, state_check
from tidegate.store.sessions import ENGINE_ROLE, SHARED_SCHEMA

MIGRATOR_ROLE = "tidegate_migrator"
ECONOMY = "economy"
# Who may use the guild economy from SQL; everything else is the engine's.
ECONOMY_ROLE = "tidegate_economy"
ROLES = (ENGINE_ROLE, "tidegate_auditor", MIGRATOR_ROLE, ECONOMY_ROLE, "tidegate_inbox")
LOCK = 7_305_117_894  # Of this program alone: two migrations at once wait for each other.
MAX_IDENTIFIER_BYTES = 63
# An archived transfer is judged by its flow for ever, and so holds a change of it up as well.
CHECKED: Mapping[str, Callable[[Flow], str]] = {
    "history": history_check,
    "transfers": state_check,
    "archived_history": history_check,
    "archived_transfers": state_check,
}


class MigrationRefused(Exception):
    """The database is not what these files made, or not what this program needs."""


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
        connection.execute("SET lock_timeout = '10s'")
        _create_roles(connection)
        _become_migrator(connection)
        for folder, *path in _wanted(connection, schema):
            for done in _migrate_schema(connection, folder, path):
                note(f"{path[0]}: {done}")
        with connection.transaction():
            _set_path(connection, (schema, SHARED_SCHEMA))
            for flow in flows:
                if _install(connection, flow):
                    note(f"{schema}: flow {flow.name}")
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
    schema, name = path[0], _identifier(path[0])
    with connection.transaction():
        connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(name))
        _set_path(connection, path)
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
        _set_path(connection, path)
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


def _identifier(name: str) -> sql.Identifier:
    """A longer name is cut off by the server, and would be another's that begins like it."""
    if len(name.encode()) > MAX_IDENTIFIER_BYTES:
        raise MigrationRefused(f"{name} is longer than {MAX_IDENTIFIER_BYTES} bytes")
    return sql.Identifier(name)


def _set_path(connection: psycopg.Connection, path: Sequence[str]) -> None:
    names = sql.SQL(", ").join(map(sql.Identifier, path))
    connection.execute(sql.SQL("SET LOCAL search_path TO {}").format(names))


def _check(connection: psycopg.Connection, flow: Flow, table: str, name: sql.Identifier) -> None:
    """Let a table hold only what the flow allows."""
    check, target = CHECKED[table](flow), sql.Identifier(table)
    drop = sql.SQL("ALTER TABLE {} DROP CONSTRAINT IF EXISTS {}").format(target, name)
    add = sql.SQL("ALTER TABLE {} ADD CONSTRAINT {} CHECK ({})").format(
        target, name, sql.SQL(check)
    )
    connection.execute(drop)
    try:
        connection.execute(add)
    except psycopg.errors.CheckViolation as fault:
        raise MigrationRefused(
            f"flow {flow.name}: {table} holds rows that its new table does not allow"
        ) from fault


def _install(connection: psycopg.Connection, flow: Flow) -> bool:
    """Install a flow's constraints; False if they are there already."""
    wanted = checksum(flow)
    row = connection.execute(
        "SELECT checksum FROM flow_tables WHERE flow = %s", (flow.name,)
    ).fetchone()
    name = _identifier(f"flow_{flow.name}")
    there = connection.execute(
        "SELECT c.relname FROM pg_constraint JOIN pg_class AS c ON c.oid = conrelid"
        " WHERE conname = %s AND conrelid = ANY(%s::text[]::regclass[])",
        (f"flow_{flow.name}", list(CHECKED)),
    ).fetchall()
    # A table that changed holds for all; what is merely missing is added, and nothing read again.
    bare = [t for t in CHECKED if row != (wanted,) or (t,) not in there]
    for table in bare:
        _check(connection, flow, table, name)
    if row == (wanted,):
        return bool(bare)
    for table in ("flow_tables", "flow_states"):
        forget = sql.SQL("DELETE FROM {} WHERE flow = %s").format(sql.Identifier(table))
        connection.execute(forget, (flow.name,))
    connection.execute("INSERT INTO flow_tables VALUES (%s, %s)", (flow.name, wanted))
    for state, place in flow.rows.items():
        connection.execute(
            "INSERT INTO flow_states (flow, state, place, is_end, code)"
            " VALUES (%s, %s, %s, %s, %s)",
            (flow.name, state, place.place, isinstance(place, End), flow.codes.get(state)),
        )
    return True
