"""The archive: what ended long ago is moved out of the engine's way, while the engine runs."""

from collections.abc import Generator, Iterator
from typing import Any, NamedTuple
from uuid import UUID

import psycopg

from tidegate.core.sql import load
from tidegate.store.migrate import MIGRATOR_ROLE
from tidegate.store.sessions import StoreLimits, session_options

STATEMENTS = load("tidegate.store", "archive.sql")
FIRST = UUID(int=0)
BATCH = 1_000


class ArchiveRefused(Exception):
    """A transfer is not whole. It and the others of its batch stay where they are."""


class ArchiveAges(NamedTuple):
    """How long after its end a transfer is moved, and how long its caller's key is known."""

    older_s: float
    keep_cids_s: float


class ArchivedBatch(NamedTuple):
    """What one transaction has moved, or forgotten."""

    transfers: int = 0
    answers: int = 0
    attempts: int = 0
    cids: int = 0


def archive(
    conninfo: str, schema: str, ages: ArchiveAges, limit: int = BATCH
) -> Generator[ArchivedBatch, None, None]:
    """Move batch by batch, each in one short transaction; tell of each when it is durable.

    To stop anywhere is safe: the next run goes on with what is left.
    """
    options = session_options(schema, StoreLimits(), MIGRATOR_ROLE)
    with psycopg.connect(conninfo, autocommit=True, options=options) as session:
        for row in _batches(session, "move", ages.older_s, limit):
            yield ArchivedBatch(transfers=row[1], answers=row[3], attempts=row[4])
        for row in _batches(session, "forget", ages.keep_cids_s, limit):
            yield ArchivedBatch(cids=row[1])


def _batches(
    session: psycopg.Connection, name: str, older_s: float, limit: int
) -> Iterator[tuple[Any, ...]]:
    """Every batch there is, from the oldest on, until one comes back empty."""
    values = {"after": FIRST, "older_ms": int(older_s * 1000), "limit": limit}
    while True:
        with session.transaction():
            [row] = session.execute(STATEMENTS[name], values).fetchall()
            last, wanted, put, *_, odd = row
            if odd is not None:
                what = "history" if name == "move" else "key"
                raise ArchiveRefused(f"transfer {odd}: its {what} is not whole; run the audit")
            assert put == wanted, "a row was locked, and was not there"
        if last is None:
            return
        values["after"] = last
        yield row
