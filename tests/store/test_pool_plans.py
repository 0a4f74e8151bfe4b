"""Plans of the transfer pool: its statements, and those inside its functions, use an index."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any
from uuid import UUID

import psycopg
import pytest

from tests.cluster import cluster_url, create_database, leave_database
from tests.conftest import SCHEMA
from tests.store.plans import Plan, indexes, read_in_full
from tests.store.scenario import superuser
from tidegate.core.sql import names, numbers, uuids
from tidegate.economy import gateway
from tidegate.store import pool_schema
from tidegate.store.sessions import StoreLimits, session_options
from tidegate.systems.guild import postgres as guild

SIZES = (1, 30_000)
# Transfer n is from member n to n + 1, in guild n / 1000 + 1; the first waits for the checks.
FILL = """
SET LOCAL session_replication_role TO replica;
INSERT INTO transfers (id, owner, flow, state, lane, due_lane, due_at, version, attempts, retries,
                       paged, parties, asset_id, amount, head_hash, expires_at, created_at,
                       updated_at)
SELECT lpad(to_hex(n), 32, '0')::uuid, n / 1000 + 1, 'pool_transfer',
       CASE n WHEN 1 THEN 'CHECKING' ELSE 'COMPLETED' END, CASE n WHEN 1 THEN 'checks' END,
       CASE n WHEN 1 THEN 'checks' END,
       now(), 0, 0, 0, false, '{{}}', 6, 5, '\\x00', now() + interval '1 day', now(), now()
  FROM generate_series(1, {size}) AS n;
INSERT INTO economy.pending_transfers (transfer_id, guild_id, initiator_id, target_id, amount,
                                       status)
SELECT lpad(to_hex(n), 32, '0')::uuid, n / 1000 + 1, n, n + 1, 5,
       CASE n WHEN 1 THEN 'checking' ELSE 'completed' END
  FROM generate_series(1, {size}) AS n;
INSERT INTO cids (owner, cid, fingerprint, transfer_id)
SELECT n / 1000 + 1, n || ':c', '\\x00', lpad(to_hex(n), 32, '0')::uuid
  FROM generate_series(1, {size}) AS n;
INSERT INTO ledger_accounts (owner, book, asset_id, available)
SELECT n / 1000 + 1, 'member:' || n, 6, 100
  FROM generate_series(1, {size}) AS n;
INSERT INTO economy.throttles (guild_id, member_id)
SELECT n / 1000 + 1, n
  FROM generate_series(1, {size}) AS n;
INSERT INTO ledger_operations (transfer_id, version, owner, book, asset_id, verb, amount, result,
                               reason, delta, held_delta, balance_after)
SELECT lpad(to_hex(n), 32, '0')::uuid, v, n / 1000 + 1, 'member:' || n + v - 2, 6,
       CASE v WHEN 2 THEN 'debit' ELSE 'credit' END, 5, 'done', '', 5, 0, 5
  FROM generate_series(1, {size}) AS n, generate_series(2, 3) AS v;
"""
ONE = UUID(int=1)
IDS = {"ids": uuids([ONE])}
MEMBER = {"guilds": numbers([1]), "members": numbers([1])}
MOVED = {"states": names(["APPROVED"]), "retries": numbers([1]), "rounds": numbers([0])}
PAID = {"targets": numbers([2]), "amounts": numbers([5])}
WISH = {"guild_id": 1, "initiator_id": 1, "target_id": 2, "amount": 5, "metadata": "{}"}
NEW = WISH | {"transfer_id": None, "expires_hours": 24, "cid": "d", "admitted": True}
MANY: dict[str, list[Any]] = {name: [value] for name, value in WISH.items()}
MANY |= {"expires_hours": [24.0], "cid": ["d"]}
MINE = {"owner": 1, "guild_id": None, "status": None, "limit": 20, "offset": 0}
# The statements, and the indexes that they use. `differing` is left out: it compares all rows.
CASES: Mapping[str, tuple[str, Mapping[str, Any], set[str]]] = {
    "standings": (
        guild.STATEMENTS["standings"],
        MEMBER,
        {"throttles_pkey", "ledger_accounts_pkey"},
    ),
    "throttle": (guild.STATEMENTS["throttle"], {**MEMBER, "cooldowns": numbers([9])}, set()),
    "check": (
        guild.STATEMENTS["check"],
        IDS,
        # The last is used to compare the approved transfer with the engine's record.
        {"pending_transfers_pkey", "throttles_pkey", "ledger_accounts_pkey", "transfers_pkey"},
    ),
    "record": (
        guild.STATEMENTS["record"],
        {**IDS, **MOVED, "reasons": names([""])},
        {"pending_transfers_pkey", "transfers_pkey"},
    ),
    "pay": (
        guild.STATEMENTS["pay"],
        {**IDS, **MEMBER, **PAID},
        {"ledger_operations_pkey"},
    ),
    "create": (
        pool_schema.STATEMENTS["create"],
        NEW,
        # The pool's own row is not read again: the inserted row is compared with its request.
        {"cids_pkey", "transfers_pkey"},
    ),
    "create_many": (
        gateway.STATEMENTS["create_many"],
        MANY,
        {"cids_pkey", "transfers_pkey"},
    ),
    "waiting": (pool_schema.STATEMENTS["waiting"], {}, {"transfers_due"}),
    "own": (pool_schema.STATEMENTS["own"], MINE, {"pending_transfers_of_initiator"}),
    "show": (
        pool_schema.STATEMENTS["show"],
        {"transfer_id": ONE, "owner": 1},
        {"pending_transfers_pkey"},
    ),
    "list": (
        "SELECT FROM economy.fn_list_pending_transfers(1, NULL, 20, 0)",
        {},
        {"pending_transfers_of_guild"},
    ),
}


@pytest.fixture(scope="module", params=SIZES)
def filled(template: str, request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"{template}_pool_{request.param}"
    database = create_database(cluster_url(), name, template)
    with superuser(database) as connection:
        with connection.transaction():
            connection.execute(FILL.format(size=request.param))
        connection.execute("ANALYZE")
    yield database
    leave_database(cluster_url(), name)


def executed_plans(
    database: str, statement: str, values: Mapping[str, Any], mode: str
) -> list[Plan]:
    """The plans of a statement, and of the statements inside the functions that it calls."""
    notices: list[str] = []
    options = session_options(SCHEMA, StoreLimits(), "none")
    with psycopg.connect(database, options=options) as connection:
        connection.execute("LOAD 'auto_explain'")
        connection.add_notice_handler(lambda notice: notices.append(notice.message_primary or ""))
        for setting, value in (
            ("plan_cache_mode", mode),
            ("client_min_messages", "log"),
            ("auto_explain.log_nested_statements", "on"),
            ("auto_explain.log_format", "json"),
            ("auto_explain.log_min_duration", "0"),
        ):
            connection.execute("SELECT set_config(%s, %s, true)", (setting, value))
        notices.clear()
        connection.execute(statement, values)
        # Run the deferred checks now. They fail, because the engine's record was not changed.
        with suppress(psycopg.errors.IntegrityConstraintViolation):
            connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        connection.rollback()
    return [json.loads(text.partition("plan:\n")[2])["Plan"] for text in notices if "plan:" in text]


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("name", CASES)
def test_nothing_in_the_pool_reads_a_big_table_in_full(filled: str, name: str, mode: str) -> None:
    statement, values, used = CASES[name]
    plans = executed_plans(filled, statement, values, mode)
    assert {index for plan in plans for index in indexes(plan)} == used
    assert [scan for plan in plans for scan in read_in_full(plan)] == []
