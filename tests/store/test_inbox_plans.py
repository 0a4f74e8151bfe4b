"""Plans of the inbox: a program's session always finds keys by their index."""

import json
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import psycopg
import pytest

from tests.cluster import cluster_url, create_database, leave_database
from tests.conftest import SCHEMA
from tests.store.plans import Plan, indexes, read_in_full
from tests.store.scenario import superuser

SIZE = 30_000
# After five custom plans PostgreSQL may switch to a generic plan.
RUNS_UNTIL_GENERIC = 7
GRANT = "INSERT INTO inbox_grants (role, flow) VALUES ('tidegate_inbox', 'deposit')"
# Keys of internal transfers have no prefix.
FILL = f"""
INSERT INTO cids (owner, cid, fingerprint, transfer_id)
SELECT 1, 'c' || n, '\\x00', lpad(to_hex(n), 32, '0')::uuid
  FROM generate_series(1, {SIZE}) AS n;
INSERT INTO {{table}} (id, owner, flow, state, due_at, version, attempts, retries, paged, parties,
                       asset_id, amount, cid, head_hash, created_at, updated_at)
SELECT lpad(to_hex(n), 32, '0')::uuid, 1, 'internal_transfer', 'COMMITTED', now(), 1, 0, 0, false,
       '{{{{}}}}', 3, 5, 'c' || n, '\\x00', now(), now()
  FROM generate_series(1, {SIZE}) AS n;
"""
ASK = "SELECT request_transfer('deposit', 1, 'USDT', 5, %s, %s)"
TERMS = '{"account": "FUNDING"}'
BY_KEY = {"cids_pkey"}
BY_KEY_AND_ID = {"cids_pkey", "transfers_pkey", "archived_transfers_pkey"}
_numbers = count()


@pytest.fixture
def empty(template: str) -> Iterator[str]:
    """A database that was analyzed while empty: its statistics favour full scans."""
    name = f"{template}_inbox_plans_{next(_numbers)}"
    database = create_database(cluster_url(), name, template)
    with superuser(database) as connection:
        connection.execute(GRANT)
        connection.execute("VACUUM ANALYZE")
    yield database
    leave_database(cluster_url(), name)


class PlainSession:
    """A program's session, without the settings of the engine's sessions."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._notices: list[str] = []
        connection.add_notice_handler(lambda n: self._notices.append(n.message_primary or ""))
        connection.execute("LOAD 'auto_explain'")
        for setting, value in (
            ("search_path", SCHEMA),
            ("client_min_messages", "log"),
            ("auto_explain.log_nested_statements", "on"),
            ("auto_explain.log_format", "json"),
            ("auto_explain.log_min_duration", "0"),
        ):
            connection.execute("SELECT set_config(%s, %s, false)", (setting, value))

    def ask(self, cid: str) -> Sequence[Plan]:
        """The plans of all statements that a request runs. The request is rolled back."""
        self._notices.clear()
        with self._connection.transaction(force_rollback=True):
            self._connection.execute(ASK, (TERMS, cid))
        return [
            json.loads(t.partition("plan:\n")[2])["Plan"] for t in self._notices if "plan:" in t
        ]


def assert_found_by(plans: Sequence[Plan], used: set[str]) -> None:
    assert {index for plan in plans for index in indexes(plan)} == used
    assert [scan for plan in plans for scan in read_in_full(plan)] == []


@pytest.mark.parametrize("table", ["transfers", "archived_transfers"])
def test_a_program_finds_keys_by_their_index(empty: str, table: str) -> None:
    with psycopg.connect(empty, autocommit=True) as early:
        session = PlainSession(early)
        for _ in range(RUNS_UNTIL_GENERIC):
            assert_found_by(session.ask("new"), BY_KEY)
        with superuser(empty) as connection:
            connection.execute(FILL.format(table=table))
        assert_found_by(session.ask("new"), BY_KEY)
        for _ in range(RUNS_UNTIL_GENERIC):
            assert_found_by(session.ask("c7"), BY_KEY_AND_ID)
        with superuser(empty) as connection:
            connection.execute("ANALYZE")
        assert_found_by(session.ask("c8"), BY_KEY_AND_ID)
    with psycopg.connect(empty, autocommit=True) as late:
        session = PlainSession(late)
        for mode in ("force_custom_plan", "force_generic_plan"):
            late.execute(f"SET plan_cache_mode TO {mode}")
            assert_found_by(session.ask("new"), BY_KEY)
            assert_found_by(session.ask("c9"), BY_KEY_AND_ID)
