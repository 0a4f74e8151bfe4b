"""Plans of statements that read or fill the archive: they find their rows by keys."""

import json
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

import psycopg
import pytest

from tests.cluster import cluster_url, create_database, drop_database
from tests.conftest import SCHEMA
from tests.store.plans import Plan, nodes, read_in_full
from tests.store.scenario import superuser
from tidegate.core.sql import uuids
from tidegate.store import archive, audit_reads, operator_reads
from tidegate.store.migrate import MIGRATOR_ROLE
from tidegate.store.sessions import ENGINE_ROLE, StoreLimits, session_options

MIDDLE, AFTER_MIDDLE = UUID(int=41_000), UUID(int=42_000)
PAGE = uuids(UUID(int=n) for n in range(40_500, 41_500))
SEARCH = {"owner": None, "flow": None, "state": None, "before": MIDDLE, "limit": 20}
OLD = {"after": MIDDLE, "older_ms": 0, "limit": 1_000}

# The first half is archived; 41 000 is the last archived transfer.
FILL = """
INSERT INTO {transfers} (id, owner, flow, state, due_at, version, attempts, retries, paged,
                         parties, asset_id, amount, head_hash, created_at, updated_at)
SELECT lpad(to_hex(n), 32, '0')::uuid, n / 10 + 1, 'deposit', 'COMPLETED', now(), 2, 0, 0, false,
       '{{}}', 3, 10, '\\x00', now(), now()
  FROM generate_series({first}, {last}) AS n;
INSERT INTO {history} (transfer_id, version, flow, from_state, waypoints, to_state, verb, answer,
                       reason, actor, at, hash)
SELECT lpad(to_hex(n), 32, '0')::uuid, 1, 'deposit', 'CREDITING', '', 'COMPLETED', 'credit',
       'done', '', '', now(), '\\x00'
  FROM generate_series({first}, {last}) AS n;
INSERT INTO cids (owner, cid, fingerprint, transfer_id)
SELECT n / 10 + 1, 'cid ' || n, '\\x00', lpad(to_hex(n), 32, '0')::uuid
  FROM generate_series({first}, {last}) AS n;
"""
CASES: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "one": (ENGINE_ROLE, operator_reads.STATEMENTS["one"], {"id": MIDDLE}),
    "history": (ENGINE_ROLE, operator_reads.STATEMENTS["history"], {"id": MIDDLE}),
    "search": (ENGINE_ROLE, operator_reads.STATEMENTS["search"], SEARCH),
    "list": (
        ENGINE_ROLE,
        operator_reads.STATEMENTS["list_of_owner"],
        {"owner": 4_100, "state": None, "before": MIDDLE, "limit": 20},
    ),
    "ids": (ENGINE_ROLE, audit_reads.STATEMENTS["ids"], {"after": MIDDLE, "limit": 500}),
    "rows": (ENGINE_ROLE, audit_reads.STATEMENTS["rows"], {"ids": PAGE}),
    "answers": (ENGINE_ROLE, audit_reads.STATEMENTS["answers"], {"ids": PAGE}),
    "seen": (ENGINE_ROLE, audit_reads.STATEMENTS["seen"], {"ids": PAGE}),
    "strays": (
        ENGINE_ROLE,
        audit_reads.STATEMENTS["strays"],
        {"after": MIDDLE, "upto": AFTER_MIDDLE, "limit": 20},
    ),
    "move": (MIGRATOR_ROLE, archive.STATEMENTS["move"], OLD),
    "forget": (MIGRATOR_ROLE, archive.STATEMENTS["forget"], OLD),
}


@pytest.fixture(scope="module")
def filled(template: str) -> Iterator[str]:
    name = f"{template}_half_archived"
    database = create_database(cluster_url(), name, template)
    old = {"transfers": "archived_transfers", "history": "archived_history"}
    new = {table: table for table in old}
    with superuser(database) as connection:
        for tables, first, last in ((old, 1, 41_000), (new, 41_001, 82_000)):
            connection.execute(FILL.format(**tables, first=first, last=last))
        connection.execute("ANALYZE")
    yield database
    drop_database(cluster_url(), name)


def plan_of(database: str, role: str, statement: str, values: Mapping[str, Any]) -> Plan:
    options = session_options(SCHEMA, StoreLimits(), role)
    with psycopg.ClientCursor(psycopg.connect(database, options=options)) as cursor:
        cursor.execute("EXPLAIN (FORMAT JSON) " + statement, values)
        [(answer,)] = cursor.fetchall()
        cursor.connection.close()
    tree = json.loads(answer) if isinstance(answer, str) else answer
    root: Plan = tree[0]["Plan"]
    return root


@pytest.mark.parametrize("name", CASES)
def test_no_big_table_is_read_in_full(filled: str, name: str) -> None:
    plan = plan_of(filled, *CASES[name])
    assert [node for node in nodes(plan) if "Index Name" in node]
    assert read_in_full(plan) == []
