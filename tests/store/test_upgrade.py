"""An upgrade with rows: rows of older versions stay equal, verify, and continue to their ends."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import psycopg
import pytest
from msgspec.structs import replace
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from tests.cluster import cluster_url, create_database, leave_database
from tests.conftest import SCHEMA
from tests.running import eventually
from tests.store.chain import broken_chains
from tests.store.older import BEFORE_FEES, BEFORE_SPACES, migrate_until, withdrawn
from tests.store.scenario import (
    USDT,
    WAIT_S,
    EngineSetup,
    Remote,
    balances,
    deposit,
    from_remote,
    rows,
    run_to_end,
    running,
    submitted,
    superuser,
    to_remote,
    to_savings,
)
from tidegate.core.answers import Answer, Done, Rejected, Unknown
from tidegate.core.kind import Transfer
from tidegate.core.request import Request
from tidegate.core.transfer import Question
from tidegate.engine.audit import Audit
from tidegate.engine.audit_rules import broken_chain
from tidegate.engine.pending_request import Receipt
from tidegate.flows import FLOWS
from tidegate.store.archive import ArchiveAges, archive
from tidegate.store.audit_reads import audit_snapshot
from tidegate.store.migrate import migrate, migrations
from tidegate.store.postgres import PostgresStore

OWNER = 1
YEAR_S = 365 * 24 * 3600
REFUSED, LATE, OPEN = 13, 17, (40, 41, 42)  # The outside system answers according to the amount.
TABLES = (
    *("transfers", "history", "cids", "attempts", "ledger_accounts", "ledger_operations"),
    *("daily_totals", "archived_transfers", "archived_history"),
)
ENDS = {"d": "COMPLETED", "s": "COMMITTED", "f": "FAILED", "r": "COMMITTED", "b": "ROLLED_BACK"}
ENDS |= {"i": "COMMITTED", "l": "COMMITTED", "w": "COMPLETED"}


class Outside:
    """Refuses one amount, answers one late, and leaves some open."""

    def __init__(self) -> None:
        self.late: set[UUID] = set()

    def __call__(self, question: Question) -> Answer:
        if question.amount == REFUSED:
            return Rejected("ACCOUNT_FROZEN", {"z": "last", "a": "«first»"})
        late = question.amount == LATE and question.transfer_id not in self.late
        if late or question.amount in OPEN:
            self.late.add(question.transfer_id)
            return Unknown("timeout")
        return Done({"block": "0x1f"})


def requests(mark: str) -> dict[str, Request]:
    """Requests by cid that end in all ways, with refused and undone operations of the ledger."""
    wanted = {
        "d": deposit(OWNER, 1_000),
        "s": to_savings(OWNER, 10),
        "f": to_savings(OWNER, 50_000),
        "r": to_remote(OWNER, 20),
        "b": to_remote(OWNER, REFUSED),
        "i": from_remote(OWNER, 30),
        "l": to_remote(OWNER, LATE),
        "w": Request(OWNER, "external_withdrawal", withdrawn(OWNER, "FUNDING"), USDT, 50),
    }
    return {f"{name}-{mark}": replace(r, cid=f"{name}-{mark}") for name, r in wanted.items()}


def open_requests() -> dict[str, Request]:
    """Requests that wait for the outside system: two for its credit, one for its debit."""
    first, second, third = OPEN
    wanted = [to_remote(OWNER, first), to_remote(OWNER, second), from_remote(OWNER, third)]
    return {f"open-{r.amount}": replace(r, cid=f"open-{r.amount}") for r in wanted}


async def _create_rows(database: str) -> dict[str, Transfer]:
    """The transfers of all requests. The first ones are archived."""
    made: dict[str, Transfer] = {}
    for mark in ("archived", "kept"):
        async with running(EngineSetup(database, Remote(Outside()))) as engine:
            for cid, request in requests(mark).items():
                made[cid] = await run_to_end(engine, request)
            if mark == "kept":
                for cid, request in open_requests().items():
                    made[cid] = await submitted(engine, request)
                await asyncio.to_thread(eventually, lambda: _tried(database), WAIT_S)
            else:
                await asyncio.to_thread(_archive, database)
    return made


def _tried(database: str) -> bool:
    """Whether each open transfer has an attempt."""
    statement = "SELECT count(DISTINCT a.transfer_id) FROM attempts AS a JOIN transfers ON id = "
    [(count,)] = rows(database, statement + "a.transfer_id WHERE lane IS NOT NULL")
    return bool(count == len(OPEN))


def _archive(database: str) -> None:
    assert sum(b.transfers for b in archive(database, SCHEMA, ArchiveAges(0, YEAR_S))) == len(ENDS)


def _columns(database: str, table: str) -> list[str]:
    found = rows(
        database,
        "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0"
        " AND NOT attisdropped ORDER BY attname",
        table,
    )
    return [name for (name,) in found]


def _copy(source: str, target: str, table: str) -> None:
    """Copy the rows of a table, with the columns that the older schema has."""
    columns = sql.SQL(", ").join(map(sql.Identifier, _columns(target, table)))
    name = sql.Identifier(table)
    out = sql.SQL("COPY (SELECT {} FROM {}) TO STDOUT (FORMAT BINARY)").format(columns, name)
    into = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT BINARY)").format(name, columns)
    with (
        superuser(source) as reading,
        superuser(target) as writing,
        reading.cursor().copy(out) as copied,
        writing.cursor().copy(into) as written,
    ):
        for block in copied:
            written.write(block)


class Upgraded:
    """A database with rows in an older schema, and methods to read and migrate it."""

    def __init__(self, database: str, made: Mapping[str, Transfer]) -> None:
        self.database, self.made = database, made
        self._columns = {table: _columns(database, table) for table in TABLES}

    def contents(self) -> dict[str, list[Any]]:
        """All rows, in the columns of the older schema."""
        found = {}
        for table, columns in self._columns.items():
            names = sql.SQL(", ").join(map(sql.Identifier, columns))
            read = sql.SQL("SELECT row_to_json(r)::text FROM (SELECT {} FROM {}) AS r ORDER BY 1")
            with superuser(self.database) as connection:
                statement = read.format(names, sql.Identifier(table))
                found[table] = connection.execute(statement).fetchall()
        return found

    def migrate(self, on_applied: Callable[[str], None] = lambda _: None) -> list[str]:
        return migrate(self.database, SCHEMA, FLOWS.values(), on_applied, economy=True)


@pytest.fixture(scope="module")
def older_rows(template: str) -> Iterator[tuple[str, Mapping[str, Transfer]]]:
    name = f"{template}_rows"
    database = create_database(cluster_url(), name, template)
    yield database, asyncio.run(_create_rows(database))
    leave_database(cluster_url(), name)


@pytest.fixture(params=[BEFORE_SPACES, BEFORE_FEES], ids=["store 6", "store 8"])
def old(
    unmigrated: str, older_rows: tuple[str, Mapping[str, Transfer]], request: pytest.FixtureRequest
) -> Upgraded:
    """Real rows in an older schema, with the fingerprints that the older version computed."""
    migrate_until(unmigrated, request.param)
    source, made = older_rows
    for table in TABLES:
        _copy(source, unmigrated, table)
    wanted = {**requests("archived"), **requests("kept"), **open_requests()}
    with superuser(unmigrated) as connection:
        for cid, older in wanted.items():
            set_old = "UPDATE cids SET fingerprint = %s WHERE owner = %s AND cid = %s"
            changed = connection.execute(set_old, (older.older_fingerprint(), OWNER, cid))
            assert changed.rowcount == 1
    return Upgraded(unmigrated, made)


def test_rows_read_back_equal_after_an_upgrade(old: Upgraded) -> None:
    before = old.contents()
    assert all(before[table] for table in TABLES if table != "daily_totals"), "a table is empty"
    ends = rows(old.database, "SELECT DISTINCT state FROM transfers WHERE lane IS NULL")
    assert {state for (state,) in ends} == set(ENDS.values())
    results = rows(old.database, "SELECT DISTINCT verb, result FROM ledger_operations")
    assert {("debit", "done"), ("debit", "rejected"), ("refund", "done")} <= set(results)
    old.migrate()
    assert old.contents() == before
    added = "SELECT DISTINCT fee, space FROM every_transfer"
    assert rows(old.database, added) == [(0, None)]
    assert rows(old.database, "SELECT DISTINCT entry FROM ledger_operations") == [(0,)]


def test_rows_of_an_older_version_verify_and_continue(old: Upgraded) -> None:
    old.migrate()
    with superuser(old.database) as connection:
        assert list(broken_chains(connection)) == []

    def answering(question: Question) -> Answer:
        return Rejected("ACCOUNT_FROZEN") if question.amount == OPEN[1] else Done()

    async def scenario() -> None:
        async with PostgresStore(old.database, SCHEMA) as store:
            assert await _audited(store, old) == []
        async with running(EngineSetup(old.database, Remote(answering))) as engine:
            for cid, request in (requests("archived") | requests("kept") | open_requests()).items():
                receipt = await engine.transfer(request, WAIT_S)
                assert isinstance(receipt, Receipt), (cid, receipt)
                assert (receipt.transfer.id, receipt.duplicate) == (old.made[cid].id, True)
                end = ENDS.get(cid.partition("-")[0], "COMMITTED")
                assert receipt.transfer.state == ("ROLLED_BACK" if cid == "open-41" else end), cid
            # A transfer that the new version creates.
            await run_to_end(engine, to_savings(OWNER, 1))
        async with PostgresStore(old.database, SCHEMA) as store:
            assert await _audited(store, old) == []

    asyncio.run(scenario())
    with superuser(old.database) as connection:
        assert list(broken_chains(connection)) == []
    held = balances(old.database, OWNER)
    out = 2 * (10 + 20 - 30 + LATE + 50) + OPEN[0] - OPEN[2] + 1
    assert (held["FUNDING"], held["SAVINGS"], held["OUTSIDE"]) == (2_000 - out, 21, -1_900)


async def _audited(store: PostgresStore, old: Upgraded) -> list[str]:
    """The violations of a full audit, and all broken chains, including those of open transfers."""
    audit = Audit(store, None, FLOWS, lambda _: None)
    report = await audit.run()
    found = [*report.violations, *(["halted"] if report.halted else [])]
    assert audit.read["transfers"] >= len(old.made)
    async with audit_snapshot(store) as snapshot:
        ids = [id_ for id_, _ in await snapshot.ids(UUID(int=0), 1_000)]
        cases = await snapshot.cases(ids)
        assert len(cases) >= len(old.made)
        return found + [problem for case in cases for problem in broken_chain(case)]


class Interrupted(Exception):
    """The migration stops here."""


def test_an_upgrade_can_continue_after_an_interruption(old: Upgraded) -> None:
    before, names = old.contents(), []

    def stop(name: str) -> None:
        names.append(name)
        raise Interrupted

    for _ in range(100):
        try:
            assert old.migrate(stop) == []
        except Interrupted:
            assert old.contents() == before
            continue
        break
    assert len(names) == len(set(names)), "a migration was applied twice"
    applied = rows(old.database, "SELECT name FROM migrations ORDER BY number")
    assert applied == [(migration.name,) for migration in migrations("store")]
    assert old.contents() == before


def test_an_upgrade_can_continue_after_a_kill_inside_a_migration(old: Upgraded) -> None:
    """The migration of fees waits for a lock on the ledger's operations when it is killed."""
    before = old.contents()
    waits = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = %s"
    name = conninfo_to_dict(old.database)["dbname"]
    with (
        ThreadPoolExecutor(1) as beside,
        superuser(old.database) as holder,
        holder.transaction(),
    ):
        holder.execute("LOCK TABLE ledger_operations IN SHARE MODE")
        run = beside.submit(old.migrate)
        eventually(lambda: bool(rows(old.database, waits, name)), WAIT_S)
        [(pid,)] = rows(old.database, waits, name)
        holder.execute("SELECT pg_terminate_backend(%s)", (pid,))
        with pytest.raises(psycopg.OperationalError):
            run.result(WAIT_S)
    [(last,)] = rows(old.database, "SELECT max(number) FROM migrations")
    assert last == BEFORE_FEES["store"]
    assert "fee" not in _columns(old.database, "transfers"), "the migration was half applied"
    assert old.contents() == before
    assert f"{SCHEMA}: 0009_fees" in old.migrate()
    assert old.migrate() == []
    assert old.contents() == before
