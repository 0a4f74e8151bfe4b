"""Moves transfers that ended long ago to the archive tables, while the engine runs."""

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
    """The records of a transfer are incomplete. It and the rest of its batch are not moved."""


class ArchiveAges(NamedTuple):
    """How long after its end a transfer is archived, and how long its key (cid) is kept."""

    older_s: float
    keep_cids_s: float


class ArchivedBatch(NamedTuple):
    """How many rows one transaction has moved or deleted."""

    transfers: int = 0
    answers: int = 0
    attempts: int = 0
    cids: int = 0


def archive(
    conninfo: str, schema: str, ages: ArchiveAges, limit: int = BATCH
) -> Generator[ArchivedBatch, None, None]:
    """Archive batch by batch, each in one short transaction; yield each batch after its commit.

    It is safe to stop at any moment: the next run continues with the rest.
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
    """Run a statement batch by batch, oldest rows first, until a batch is empty."""
    values = {"after": FIRST, "older_ms": int(older_s * 1000), "limit": limit}
    while True:
        with session.transaction():
            [row] = session.execute(STATEMENTS[name], values).fetchall()
            last, locked_count, changed_count, *_, incomplete_id = row
            if incomplete_id is not None:
                part = "history is incomplete" if name == "move" else "key is missing"
                raise ArchiveRefused(f"transfer {incomplete_id}: its {part}; run the audit")
            assert changed_count == locked_count, "a locked row was not moved or marked"
        if last is None:
            return
        values["after"] = last
        yield row
