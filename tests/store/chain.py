"""Recomputes the hash chains of histories from the stored rows only."""

from collections.abc import Iterator
from uuid import UUID

import psycopg

from tidegate.core.kind import GENESIS
from tidegate.core.transfer import HistoryEntry, entry_hash

TRANSFERS = "SELECT id, flow, version, head_hash FROM every_transfer ORDER BY id"
HISTORY = (
    "SELECT version, from_state, waypoints, to_state, verb, answer, reason, evidence, actor,"
    " (extract(epoch FROM at) * 1000000)::bigint, hash"
    " FROM every_history WHERE transfer_id = %s ORDER BY version"
)


def broken_chains(connection: psycopg.Connection) -> Iterator[UUID]:
    """The transfers whose history was changed after it was written."""
    for id_, flow, version, head in connection.execute(TRANSFERS).fetchall():
        expected, intact = GENESIS, True
        entries = connection.execute(HISTORY, (id_,)).fetchall()
        for index, row in enumerate(entries):
            path = (row[1], *row[2].split(), row[3])
            entry = HistoryEntry(row[0], path, row[4], row[5], row[6], row[7] or {}, row[8])
            expected = entry_hash(expected, id_, flow, entry, row[9])
            intact = intact and row[0] == index and row[10] == expected
        if not intact or expected != head or len(entries) != version:
            yield id_
