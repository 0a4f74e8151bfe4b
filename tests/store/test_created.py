"""New transfers are found by the index of creation times, however many have ended."""

import json
import time
from collections.abc import Iterator, Mapping

import psycopg
import pytest

from tests.cluster import cluster_url, create_database, leave_database
from tests.conftest import SCHEMA
from tests.store.plans import Plan, nodes
from tests.store.scenario import superuser
from tidegate.engine.alert_watch import AlertThresholds, _bounds
from tidegate.flows import FLOWS
from tidegate.store.audit_reads import STATEMENTS
from tidegate.store.pipeline import text_of
from tidegate.store.sessions import StoreLimits, session_options

pytestmark = pytest.mark.slow

# Created one second apart.
FILL = """
    INSERT INTO transfers (id, owner, flow, state, due_at, version, attempts, retries, paged,
                           parties, asset_id, amount, head_hash, created_at, updated_at)
    SELECT gen_random_uuid(), n % 20000 + 1, 'internal_transfer', 'COMMITTED', now(), 2, 0, 0,
           false, '{}', 3, 10, '\\x00', now() - (200000 - n) * interval '1 second', now()
      FROM generate_series(1, 200000) AS n
"""
NOW_US = int(time.time() * 10**6)
FRESH: Mapping[str, object] = {"from_us": NOW_US - 60 * 10**6, "upto_us": NOW_US + 3600 * 10**6}
WATCH: Mapping[str, object] = {**_bounds(FLOWS, AlertThresholds()), "limit": 20}


@pytest.fixture(scope="module")
def filled(template: str) -> Iterator[str]:
    database = create_database(cluster_url(), f"{template}_created", template)
    with superuser(database) as connection, connection.transaction():
        connection.execute("ALTER TABLE transfers SET (autovacuum_enabled = off)")
    yield database
    leave_database(cluster_url(), f"{template}_created")


def _scans(connection: psycopg.Connection, name: str) -> list[Plan]:
    """The scans of the transfers in the plan for these values."""
    text = text_of(STATEMENTS[name])
    values = FRESH if name == "fresh" else WATCH
    literals = ", ".join(f"'{values[n]}'" for n in text.names)
    explain = f"EXPLAIN (FORMAT JSON) EXECUTE prepared_{name} ({literals})"
    [(output,)] = connection.execute(explain).fetchall()
    tree = json.loads(output) if isinstance(output, str) else output
    types = ("Seq Scan", "Index Scan", "Index Only Scan", "Bitmap Index Scan", "Bitmap Heap Scan")
    scans = [n for n in nodes(tree[0]["Plan"]) if n["Node Type"] in types]
    return [s for s in scans if "transfers" in s.get("Relation Name", s.get("Index Name", ""))]


def test_new_transfers_are_found_by_their_index_among_many(filled: str) -> None:
    options = session_options(SCHEMA, StoreLimits())
    with psycopg.connect(filled, options=options, autocommit=True) as connection:
        connection.execute("SET enable_bitmapscan TO on")
        connection.execute("SET plan_cache_mode TO force_custom_plan")
        for name in ("fresh", "watch"):
            prepared = f"PREPARE prepared_{name} AS " + text_of(STATEMENTS[name]).sql.decode()
            connection.execute(prepared.encode())
        with superuser(filled) as other:
            other.execute(FILL)
            other.execute("VACUUM ANALYZE transfers")
        for name in ("fresh", "watch"):
            scans = _scans(connection, name)
            used = {scan["Index Name"] for scan in scans if "Index Name" in scan}
            assert "transfers_created" in used, name
            # Held transfers are found by their ids, which the handover lists contain.
            assert used <= {"transfers_created", "transfers_due", "transfers_pkey"}, name
            assert "Seq Scan" not in {scan["Node Type"] for scan in scans}, name
