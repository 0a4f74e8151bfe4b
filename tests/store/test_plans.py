"""Plans: every hot statement meets its rows by an index, on an empty table and on a million."""

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.cluster import cluster_url, create_database, drop_database
from tests.conftest import SCHEMA
from tests.store.plans import (
    BIG,
    Asked,
    Plan,
    asked,
    compared_in_full,
    indexes,
    plan_of,
    prepare,
    read_in_full,
)
from tests.store.scenario import superuser
from tidegate.store.postgres import Bounds, session_options

pytestmark = pytest.mark.slow

SIZES = (1, 1000)
# After five plans made for their own values PostgreSQL keeps one for all values.
RUNS_UNTIL_KEPT = 7

HOT = {
    "claim": {"transfers_due", "transfers_pkey"},
    "lock": {"transfers_pkey"},
    "record": {"transfers_pkey"},
    "insert": set(),
    "look": {"cids_pkey", "transfers_pkey", "archived_transfers_pkey"},
    "find": {"transfers_pkey"},
    "release": {"transfers_pkey"},
    "ledger lock": {"ledger_accounts_pkey"},
    "ledger open": set(),
    "ledger look": {"ledger_accounts_pkey", "ledger_operations_pkey"},
    "ledger look_undone": {"ledger_operations_pkey"},
    "ledger apply": {"ledger_accounts_pkey"},
    "guild open_members": set(),
    "guild lock_members": {"throttles_pkey"},
    "guild begin": {"transfers_pkey"},
}

# On a table of a hundred thousand accounts, reading them all is as cheap as finding three thousand
# of them. Only a plan made for that one batch does so; the plan that is kept does not.
MAY_READ_ALL_ACCOUNTS = Asked("ledger lock", 1000)

MILLION = Path(__file__).with_name("million.sql")

Values = Mapping[Asked, Mapping[str, Any]]
Plans = dict[tuple[str, Asked], Plan]


@pytest.fixture(scope="module")
def plans(template: str) -> Iterator[Plans]:
    """The plan of every hot statement, at every stage in the life of a store."""
    names = f"{template}_asked", f"{template}_filled"
    spoken, filled = (create_database(cluster_url(), name, template) for name in names)
    values: dict[Asked, Mapping[str, Any]] = {}
    for size in SIZES:
        values |= {a: v for a, v in asyncio.run(asked(spoken, size)).items() if a.name in HOT}
    try:
        yield _lived_through(filled, values)
    finally:
        for name in names:
            drop_database(cluster_url(), name)


def _lived_through(database: str, values: Values) -> Plans:
    plans: Plans = {}
    with superuser(database) as connection:
        for table in BIG:
            # Statistics come when this test says so, and not when a daemon finds the time.
            connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
    with _session(database) as early:
        prepare(early, list(values))
        plans |= _planned("empty", early, values)
        for _ in range(RUNS_UNTIL_KEPT):
            plans |= _planned("kept while empty", early, values)
        _fill(database)
        plans |= _planned("kept from empty to filled", early, values)
    plans |= _fresh("filled, uncounted", database, values)
    with superuser(database) as connection:
        connection.execute("ANALYZE")
    return plans | _fresh("filled", database, values)


def _fill(database: str) -> None:
    with superuser(database) as connection, connection.transaction():
        connection.execute(MILLION.read_text(encoding="utf-8"))


def _fresh(stage: str, database: str, values: Values) -> Plans:
    with _session(database) as connection:
        prepare(connection, list(values))
        plans = _planned(f"{stage}, for these values", connection, values)
        connection.execute("SET plan_cache_mode TO force_generic_plan")
        return plans | _planned(f"{stage}, for any values", connection, values)


def _planned(stage: str, connection: psycopg.Connection, values: Values) -> Plans:
    return {(stage, a): plan_of(connection, a, given) for a, given in values.items()}


def _session(database: str) -> psycopg.Connection:
    """Configured as the sessions of the pool are, but for who prepares its statements."""
    options = session_options(SCHEMA, Bounds())
    return psycopg.connect(database, options=options, autocommit=True, prepare_threshold=None)


def _of(plans: Plans, wanted: Asked) -> dict[str, Plan]:
    found = {stage: plan for (stage, asked), plan in plans.items() if asked == wanted}
    assert len(found) == 7, f"{wanted} was not asked at every stage"
    return found


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", HOT)
def test_every_stage_uses_the_intended_index(plans: Plans, name: str, size: int) -> None:
    for stage, plan in _of(plans, Asked(name, size)).items():
        assert indexes(plan) == HOT[name], stage


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", HOT)
def test_no_big_table_is_read_in_full(plans: Plans, name: str, size: int) -> None:
    for stage, plan in _of(plans, Asked(name, size)).items():
        full = read_in_full(plan)
        if stage == "empty":
            # A plan for this one run, on tables that are empty: by the index all the same.
            assert not [scan for scan in full if not scan.startswith("Index")], stage
        elif Asked(name, size) == MAY_READ_ALL_ACCOUNTS and stage.endswith("for these values"):
            assert set(full) <= {"Index Scan on ledger_accounts"}, stage
        else:
            assert full == [], stage


@pytest.mark.parametrize("name", HOT)
def test_no_batch_is_compared_with_itself_row_by_row(plans: Plans, name: str) -> None:
    for stage, plan in _of(plans, Asked(name, 1000)).items():
        assert compared_in_full(plan) == [], stage


@pytest.mark.parametrize("name", HOT)
def test_no_plan_that_is_kept_depends_on_the_size_of_the_batch(plans: Plans, name: str) -> None:
    """Made for any values, it is the same whichever batch was the first."""
    for stage in ("filled, uncounted, for any values", "filled, for any values"):
        one, many = (plans[stage, Asked(name, size)] for size in SIZES)
        assert one == many, stage
