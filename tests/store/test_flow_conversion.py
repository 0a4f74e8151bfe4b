"""Converts a store of an older version from one constraint per flow to one for all flows.

At no moment does it accept a row that its flow does not allow.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.cluster import cluster_url, create_database, leave_database
from tests.conftest import SCHEMA
from tests.store.older import BEFORE_FEWER_CHECKS, install_as_before, migrate_until
from tests.store.scenario import rows, superuser
from tests.store.test_flow_checks import (
    INSERT_HISTORY,
    INSERT_TRANSFER,
    NO_TO_GONE,
    NO_TO_PAID,
    Step,
    constraints,
    own_flow,
)
from tidegate.core.flow import Flow
from tidegate.flows import FLOWS
from tidegate.store import migrate as module
from tidegate.store.flow_checks import checksums
from tidegate.store.flow_install import CHECKED, install
from tidegate.store.migrate import migrate, migrations
from tidegate.store.schemas import MigrationRefused

ONE_FOR_ALL = {table: {"flow_rules": True} for table in CHECKED}
NOT_YET_CHECKED = {table: {"flow_rules": False} for table in CHECKED}
INSTALLED = [f"{SCHEMA}: flow {name}" for name in FLOWS]
CHECKED_LATER = [f"{SCHEMA}: flow_rules of {table}" for table in CHECKED]
FILLED = 1_000_000


class Killed(Exception):
    """The program is killed here, and its connection is closed."""


@pytest.fixture(scope="module")
def before(template: str) -> Iterator[str]:
    """The name of a database as the last version with one constraint per flow left it."""
    name = f"{template}_older"
    migrate_until(create_database(cluster_url(), name), BEFORE_FEWER_CHECKS)
    yield name
    leave_database(cluster_url(), name)


@contextmanager
def copied(before: str) -> Iterator[str]:
    name = f"{before}_{uuid4().hex[:8]}"
    yield create_database(cluster_url(), name, before)
    leave_database(cluster_url(), name)


@pytest.fixture
def old(before: str) -> Iterator[str]:
    with copied(before) as database:
        yield database


def install_own(database: str, flow: Flow) -> None:
    """Install a flow as the older version of another program did."""
    with superuser(database) as connection, connection.transaction():
        install_as_before(connection, flow)


def accepted(database: str, flow: Flow) -> list[str]:
    """The tables that accept a row that the flow does not allow."""
    state = next(str(state) for state in flow.rows)
    row: tuple[object, ...] = (uuid4(), flow.name, 1, state, "x", state, "y", "done")
    rest: tuple[object, ...] = (uuid4(), flow.name, f"no {state}", None)
    found = []
    for table in CHECKED:
        insert, values = (INSERT_HISTORY, row) if "history" in table else (INSERT_TRANSFER, rest)
        if table.startswith("archived"):
            insert = insert.replace("INTO ", "INTO archived_", 1).replace(
                "NULL::", "NULL::archived_"
            )
        with (
            superuser(database) as connection,
            suppress(psycopg.errors.CheckViolation),
            connection.transaction(force_rollback=True),
        ):
            connection.execute(insert, values)
            found.append(table)
    return found


def test_a_store_with_a_constraint_per_flow_gets_one_for_all(old: str) -> None:
    names = {f"flow_{name}": True for name in FLOWS}
    assert constraints(old) == dict.fromkeys(CHECKED, names)
    applied = migrate(old, SCHEMA, FLOWS.values(), economy=True)
    assert applied[-len(FLOWS) - len(CHECKED) :] == INSTALLED + CHECKED_LATER
    assert constraints(old) == ONE_FOR_ALL
    installed = dict(rows(old, "SELECT flow, checksum FROM flow_tables"))
    assert installed == checksums(FLOWS.values())
    assert [accepted(old, flow) for flow in FLOWS.values()] == [[]] * len(FLOWS)
    assert migrate(old, SCHEMA, FLOWS.values(), economy=True) == []


def test_a_flow_of_another_program_keeps_its_constraint_until_it_is_installed_again(
    old: str,
) -> None:
    flow = own_flow()
    install_own(old, flow)
    migrate(old, SCHEMA, FLOWS.values(), economy=True)
    both = {"flow_own flow": True, "flow_rules": True}
    assert constraints(old) == dict.fromkeys(CHECKED, both)
    assert refused_by(old, flow) == "flow_own flow"
    assert accepted(old, flow) == []
    assert migrate(old, SCHEMA, [flow]) == [f"{SCHEMA}: flow own flow", *CHECKED_LATER]
    assert constraints(old) == ONE_FOR_ALL
    assert refused_by(old, flow) == "flow_rules"
    assert accepted(old, flow) == []
    assert [accepted(old, shipped) for shipped in FLOWS.values()] == [[]] * len(FLOWS)


def refused_by(database: str, flow: Flow) -> str | None:
    with superuser(database) as connection, pytest.raises(psycopg.errors.CheckViolation) as caught:
        connection.execute(INSERT_HISTORY, (uuid4(), flow.name, *NO_TO_PAID))
    return caught.value.diag.constraint_name


def test_a_changed_flow_is_converted_or_keeps_its_older_constraint(old: str) -> None:
    first, changed = own_flow(), own_flow(rejected_end=Step.PAID)
    install_own(old, first)
    with superuser(old) as connection:
        connection.execute(INSERT_HISTORY, (uuid4(), first.name, *NO_TO_GONE))
    with pytest.raises(MigrationRefused, match="flow own flow: history has rows"):
        migrate(old, SCHEMA, [*FLOWS.values(), changed], economy=True)
    names = {f"flow_{name}": True for name in (*FLOWS, first.name)}
    assert constraints(old) == dict.fromkeys(CHECKED, names)
    assert rows(old, "SELECT flow FROM flow_rules") == []
    assert accepted(old, first) == []
    with superuser(old) as connection:
        connection.execute("DELETE FROM history")
    migrate(old, SCHEMA, [changed])
    both = {f"flow_{name}": True for name in FLOWS} | {"flow_rules": True}
    assert constraints(old) == dict.fromkeys(CHECKED, both)
    assert accepted(old, changed) == []


def test_a_conversion_that_stops_before_the_rows_are_checked_is_completed(old: str) -> None:
    def stop(name: str) -> None:
        if name.startswith(f"{SCHEMA}: flow "):
            raise Killed

    with pytest.raises(Killed):
        migrate(old, SCHEMA, FLOWS.values(), stop, economy=True)
    assert constraints(old) == NOT_YET_CHECKED
    assert [accepted(old, flow) for flow in FLOWS.values()] == [[]] * len(FLOWS)
    assert migrate(old, SCHEMA, []) == CHECKED_LATER
    assert constraints(old) == ONE_FOR_ALL


@contextmanager
def killed_after(statements: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lose the connection after this many statements of the installation."""
    execute, left = psycopg.Connection.execute, [statements]

    def counted(self: psycopg.Connection, *args: Any, **options: Any) -> Any:
        if left[0] == 0:
            self.close()
            raise Killed
        left[0] -= 1
        return execute(self, *args, **options)

    def counted_from_here(*args: Any) -> Iterator[str]:
        with monkeypatch.context() as patch:
            patch.setattr(psycopg.Connection, "execute", counted)
            yield from install(*args)

    with monkeypatch.context() as patch:
        patch.setattr(module, "install", counted_from_here)
        yield


@pytest.mark.parametrize("changes", [False, True], ids=["as it is", "changed"])
def test_a_conversion_may_be_killed_before_any_statement(
    before: str, changes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = own_flow()
    wanted = own_flow(rejected_end=Step.PAID) if changes else first
    deposit = FLOWS["deposit"]
    with copied(before) as database:
        migrate(database, SCHEMA, [])
        install_own(database, first)
        name = conninfo_to_dict(database)["dbname"]
        killed = 0
        for statements in range(200):
            with copied(str(name)) as copy:
                with killed_after(statements, monkeypatch), suppress(Killed):
                    migrate(copy, SCHEMA, [deposit, wanted])
                    break
                killed += 1
                assert accepted(copy, first) == accepted(copy, deposit) == []
                migrate(copy, SCHEMA, [deposit, wanted])
                left = {"flow_rules": True} | {
                    f"flow_{n}": True for n in FLOWS if n != deposit.name
                }
                assert constraints(copy) == dict.fromkeys(CHECKED, left)
                assert accepted(copy, wanted) == accepted(copy, deposit) == []
        assert 30 < killed < 199


def test_concurrent_conversions_do_everything_once(old: str) -> None:
    with ThreadPoolExecutor(4) as workers:
        runs = list(
            workers.map(lambda _: migrate(old, SCHEMA, FLOWS.values(), economy=True), range(4))
        )
    done = [name for run in runs for name in run]
    assert len(done) == len(set(done))
    assert set(INSTALLED + CHECKED_LATER) < set(done)
    assert constraints(old) == ONE_FOR_ALL


def test_an_older_version_does_not_restore_its_constraints(
    old: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate(old, SCHEMA, FLOWS.values(), economy=True)
    known = {folder: migrations(folder)[:last] for folder, last in BEFORE_FEWER_CHECKS.items()}
    monkeypatch.setattr(module, "migrations", known.__getitem__)
    with pytest.raises(MigrationRefused, match="run a newer tidegate"):
        migrate(old, SCHEMA, FLOWS.values(), economy=True)
    assert constraints(old) == ONE_FOR_ALL


def test_a_flow_whose_rows_were_deleted_is_installed_again(database: str) -> None:
    deposit = FLOWS["deposit"]
    for table in ("flow_tables", "flow_rules"):
        with superuser(database) as connection:
            connection.execute(f"DELETE FROM {table} WHERE flow = 'deposit'")
        assert f"{SCHEMA}: flow deposit" in migrate(database, SCHEMA, [deposit])
        assert constraints(database) == ONE_FOR_ALL
        assert accepted(database, deposit) == []


def test_a_flow_whose_older_constraint_has_our_name_is_always_checked(old: str) -> None:
    named = replace(own_flow(), name="rules")
    install_own(old, named)
    with pytest.raises(MigrationRefused, match="of the program that has this flow"):
        migrate(old, SCHEMA, FLOWS.values(), economy=True)
    assert accepted(old, named) == []
    migrate(old, SCHEMA, [named])
    assert accepted(old, named) == []
    migrate(old, SCHEMA, FLOWS.values(), economy=True)
    assert constraints(old) == ONE_FOR_ALL
    assert accepted(old, named) == []


def write_from(database: str, writers: list[psycopg.Connection]) -> Callable[[str], None]:
    """Start to write to every table just before the rows are checked, and do not commit."""

    def begin(name: str) -> None:
        if name != INSTALLED[0]:
            return
        writer = psycopg.connect(database, options=f"-c search_path={SCHEMA}")
        for table in CHECKED:
            writer.execute(f"LOCK TABLE {table} IN ROW EXCLUSIVE MODE")
        writers.append(writer)

    return begin


def test_rows_are_checked_while_others_write(old: str) -> None:
    writers: list[psycopg.Connection] = []
    applied = migrate(old, SCHEMA, FLOWS.values(), write_from(old, writers), economy=True)
    assert applied[-len(CHECKED) :] == CHECKED_LATER
    for writer in writers:
        writer.rollback()
        writer.close()
    assert len(writers) == 1
    assert constraints(old) == ONE_FOR_ALL


@pytest.mark.parametrize("table", ["transfers", "archived_history"])
def test_a_lock_that_is_held_for_long_is_reported_and_the_rest_is_done_later(
    old: str, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    migrate(old, SCHEMA, [])
    monkeypatch.setattr(module, "MAX_LOCK_WAIT", "200ms")
    with superuser(old) as holder, holder.transaction():
        holder.execute(f"LOCK TABLE {table} IN ACCESS SHARE MODE")
        with pytest.raises(MigrationRefused, match=f"{table} is locked by another session.*again"):
            migrate(old, SCHEMA, FLOWS.values(), economy=True)
        assert [accepted(old, flow) for flow in FLOWS.values()] == [[]] * len(FLOWS)
    migrate(old, SCHEMA, FLOWS.values(), economy=True)
    assert constraints(old) == ONE_FOR_ALL


def fill(database: str) -> None:
    with superuser(database) as connection, connection.transaction():
        connection.execute("SET LOCAL synchronous_commit TO off")
        connection.execute(
            "INSERT INTO history (transfer_id, flow, version, from_state, waypoints, to_state,"
            " verb, answer, reason, actor, at, hash)"
            " SELECT lpad(to_hex(n), 32, '0')::uuid, 'internal_transfer', 1, 'TARGET_PENDING', '',"
            " 'COMMITTED', 'credit', 'done', '', '', now(), ''"
            "  FROM generate_series(1, %s) AS n",
            (FILLED,),
        )


def test_a_writer_waits_little_while_a_million_rows_are_converted(old: str) -> None:
    fill(old)
    migrate(old, SCHEMA, [])
    row = (1, "TARGET_PENDING", "", "COMMITTED", "credit", "done")
    waits = []
    with ThreadPoolExecutor(1) as beside, superuser(old) as writer:
        began = time.perf_counter()
        run = beside.submit(migrate, old, SCHEMA, FLOWS.values())
        while not run.done():
            before_s = time.perf_counter()
            writer.execute(INSERT_HISTORY, (uuid4(), "internal_transfer", *row))
            waits.append(time.perf_counter() - before_s)
        took_s = time.perf_counter() - began
        assert set(run.result()) == set(INSTALLED + CHECKED_LATER)
    print(f"took {took_s:.2f} s, longest wait {max(waits):.3f} s, {len(waits)} written")
    assert max(waits) < took_s / 2
