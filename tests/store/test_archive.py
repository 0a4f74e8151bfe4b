"""The archive: transfers that ended long ago are moved completely, and all reads find them."""

import asyncio
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import Any

import psycopg
import pytest

from tests.conftest import SCHEMA
from tests.running import eventually, tidegate
from tests.store.chain import broken_chains
from tests.store.scenario import (
    EngineSetup,
    Remote,
    balances,
    deposit,
    refusing,
    rows,
    run_to_end,
    running,
    silent,
    submitted,
    superuser,
    to_remote,
    to_savings,
)
from tidegate.core.kind import Transfer
from tidegate.core.ports import KnownRequest
from tidegate.core.refusals import Refusal
from tidegate.engine.pending_request import Receipt
from tidegate.store import operator_reads
from tidegate.store.archive import ArchiveAges, ArchivedBatch, ArchiveRefused, archive
from tidegate.store.postgres import PostgresStore

HOUR_S, YEAR_S, DAY_US = 3600, 365 * 24 * 3600, 24 * 3600 * 10**6


def run_archive(database: str, older_s: float = 0, keep_cids_s: float = YEAR_S) -> ArchivedBatch:
    """Archive in batches of three, and return the totals."""
    batches = list(archive(database, SCHEMA, ArchiveAges(older_s, keep_cids_s), limit=3))
    assert all(batch.transfers <= 3 and batch.cids <= 3 for batch in batches)
    return (
        ArchivedBatch(*(sum(column) for column in zip(*batches, strict=True)))
        if batches
        else ArchivedBatch()
    )


async def _ended_transfers(database: str) -> list[Transfer]:
    """Seven transfers that have ended: six by two answers each, one rolled back by three."""
    async with running(EngineSetup(database)) as engine:
        found = [await run_to_end(engine, deposit(n, 100, f"cid {n}")) for n in (1, 2, 3)]
        found += [await run_to_end(engine, to_savings(n, 30)) for n in (1, 2, 3)]
    async with running(EngineSetup(database, Remote(refusing))) as engine:
        return [*found, await run_to_end(engine, to_remote(1, 10))]


def ended_transfers(database: str) -> list[Transfer]:
    return asyncio.run(_ended_transfers(database))


def counts(database: str) -> dict[str, int]:
    tables = ("transfers", "history", "archived_transfers", "archived_history", "cids")
    return {table: rows(database, f"SELECT count(*) FROM {table}")[0][0] for table in tables}


def split_transfers(database: str) -> list[Any]:
    """Transfers that are only partly in the archive."""
    return rows(
        database,
        "SELECT transfer_id FROM history WHERE transfer_id IN (SELECT id FROM archived_transfers)"
        " UNION SELECT transfer_id FROM archived_history"
        " WHERE transfer_id IN (SELECT id FROM transfers)"
        " UNION SELECT id FROM transfers JOIN archived_transfers USING (id)",
    )


def test_ended_transfers_are_moved_completely_and_unchanged(database: str) -> None:
    ended_transfers(database)
    everything = "SELECT * FROM {} ORDER BY 1, 2"
    before = {v: rows(database, everything.format(v)) for v in ("every_transfer", "every_history")}
    answers = len(before["every_history"])
    assert answers == 6 * 2 + 3
    assert run_archive(database) == ArchivedBatch(transfers=7, answers=answers)
    assert counts(database) == {
        "transfers": 0,
        "history": 0,
        "archived_transfers": 7,
        "archived_history": answers,
        "cids": 7,
    }
    for view, contents in before.items():
        assert rows(database, everything.format(view)) == contents
    assert balances(database, 1) == {"OUTSIDE": -100, "FUNDING": 70, "SAVINGS": 30}
    with superuser(database) as connection:
        assert list(broken_chains(connection)) == []
        connection.execute("UPDATE archived_history SET actor = 'me' WHERE flow = 'deposit'")
        assert len(list(broken_chains(connection))) == 3
    assert run_archive(database) == ArchivedBatch()


def test_recent_and_open_transfers_are_not_moved(database: str) -> None:
    async def opened() -> Transfer:
        async with running(EngineSetup(database, Remote(silent))) as engine:
            transfer = await submitted(engine, to_remote(1, 10))
            tried = partial(rows, database, "SELECT FROM attempts")
            await asyncio.to_thread(eventually, lambda: bool(tried()), 10)
            return transfer

    ended_transfers(database)
    waiting = asyncio.run(opened())
    assert run_archive(database, older_s=HOUR_S) == ArchivedBatch()
    with superuser(database) as connection:
        # The age counts from the end: two transfers ended an hour after they were created.
        connection.execute(
            "UPDATE transfers SET updated_at = now() + interval '1 hour' WHERE owner = 2"
        )
    attempts = rows(database, "SELECT * FROM attempts")
    assert attempts
    assert run_archive(database).transfers == 5
    left = rows(database, "SELECT id, owner, lane FROM transfers ORDER BY owner, id")
    assert [(owner, lane) for _, owner, lane in left] == [(1, "remote"), (2, None), (2, None)]
    assert left[0][0] == waiting.id
    assert rows(database, "SELECT * FROM attempts") == attempts
    assert split_transfers(database) == []


def test_attempts_are_deleted_when_their_transfer_is_archived(database: str) -> None:
    first_judge = iter([silent])

    def silent_once(question: Any) -> Any:
        return next(first_judge, refusing)(question)

    async def retried() -> None:
        async with running(EngineSetup(database, Remote(silent_once))) as engine:
            await run_to_end(engine, deposit(1, 100))
            await run_to_end(engine, to_remote(1, 10))

    asyncio.run(retried())
    assert run_archive(database).attempts == 1
    assert rows(database, "SELECT * FROM attempts") == []


def test_a_request_with_an_archived_cid_returns_its_transfer(database: str) -> None:
    first = ended_transfers(database)[0]
    run_archive(database)
    before = balances(database, 1)

    async def replayed() -> list[Receipt | Refusal]:
        async with running(EngineSetup(database)) as engine:
            requests = [deposit(1, 100, "cid 1")] * 20 + [deposit(1, 99, "cid 1")]
            return await asyncio.gather(*(engine.transfer(r) for r in requests))

    *same, other = asyncio.run(replayed())
    assert other is Refusal.IDEMPOTENCY_MISMATCH
    for receipt in same:
        assert isinstance(receipt, Receipt)
        assert receipt.duplicate
        assert (receipt.transfer.id, receipt.transfer.state) == (first.id, "COMPLETED")
    assert balances(database, 1) == before
    assert counts(database)["transfers"] == 0
    assert counts(database)["cids"] == 7


def test_all_reads_return_the_same_before_and_after(database: str) -> None:
    transfers = ended_transfers(database)

    async def read() -> list[object]:
        async with PostgresStore(database, SCHEMA) as store:
            ids = [t.id for t in transfers]
            found: list[Any] = [await operator_reads.history(store, id_) for id_ in ids]
            found.append(await _pages(store, 1))
            found.append(
                await operator_reads.search(
                    store, operator_reads.Search(), operator_reads.NEWEST, 5
                )
            )
            found.append(
                await operator_reads.search(store, operator_reads.Search(owner=2), ids[4], 5)
            )
            found.append([await operator_reads.one(store, id_) for id_ in ids])
            found.append([k and k.transfer for k in (await store.look([(1, "cid 1")])).known])
            return [_without_ages(result) for result in found]

    before = asyncio.run(read())
    assert len(transfers) == 7
    run_archive(database)
    assert asyncio.run(read()) == before
    asyncio.run(_read_new_and_archived(database))
    assert rows(database, "SELECT count(*) FROM transfers_tb") == [(5,)]
    assert rows(database, "SELECT count(*) FROM trading.transfers") == [(5,)]


async def _pages(store: PostgresStore, owner: int) -> list[Transfer]:
    """An owner's list, page by page of one."""
    found: list[Transfer] = []
    while page := await operator_reads.list_of_owner(
        store, owner, None, found[-1].id if found else None, 1
    ):
        found += page
    return found


async def _read_new_and_archived(database: str) -> None:
    """A list continues from new transfers to archived ones."""
    async with running(EngineSetup(database)) as engine:
        new = await run_to_end(engine, to_savings(1, 5))
        listed = await _pages(engine.parts.store, 1)  # type: ignore[arg-type]
    assert [t.id for t in listed] == sorted((t.id for t in listed), reverse=True)
    assert listed[0].id == new.id
    assert len(listed) == 3


def _without_ages(found: Sequence[Any]) -> list[Any]:
    """Drop `waited_s`, which is different in each read."""
    return [
        (t.id, t.state, t.version, t.cid, t.head_hash, t.updated_us)
        if isinstance(t, Transfer)
        else t
        for t in found
    ]


def test_a_run_that_stops_between_two_batches_moves_no_transfer_partly(database: str) -> None:
    ended_transfers(database)
    total = counts(database)
    run = archive(database, SCHEMA, ArchiveAges(0, YEAR_S), limit=2)
    assert [batch.transfers for batch in islice(run, 2)] == [2, 2]
    run.close()
    assert counts(database)["archived_transfers"] == 4
    assert split_transfers(database) == []
    with superuser(database) as connection:
        assert list(broken_chains(connection)) == []
    assert run_archive(database).transfers == 3
    assert counts(database)["archived_history"] == total["history"]


def test_a_run_that_is_killed_inside_a_batch_moves_no_transfer_partly(database: str) -> None:
    ended_transfers(database)
    before = counts(database)
    waits = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = %s"
    with psycopg.connect(database, autocommit=True) as holder, ThreadPoolExecutor(1) as thread:
        holder.execute(f"SET search_path TO {SCHEMA}")
        with holder.transaction():
            # The transfers are free and the answers are locked, so the run waits in the middle.
            holder.execute("SELECT FROM history FOR UPDATE")
            run = thread.submit(run_archive, database)
            name = holder.info.dbname
            eventually(lambda: bool(rows(database, waits, name)), 5)
            [(pid,)] = rows(database, waits, name)
            rows(database, "SELECT pg_terminate_backend(%s)", pid)
            with pytest.raises(psycopg.OperationalError):
                run.result()
    assert counts(database) == before
    assert run_archive(database).transfers == 7


def test_a_locked_transfer_is_left_for_the_next_run(database: str) -> None:
    transfers = ended_transfers(database)
    with superuser(database) as holder, holder.transaction():
        holder.execute("SELECT FROM transfers WHERE id = %s FOR UPDATE", (transfers[2].id,))
        assert run_archive(database).transfers == 6
    assert rows(database, "SELECT id FROM transfers") == [(transfers[2].id,)]
    assert run_archive(database).transfers == 1


def test_two_runs_at_once_move_everything_once(database: str) -> None:
    ended_transfers(database)
    before = counts(database)
    with ThreadPoolExecutor(4) as threads:
        runs = list(threads.map(lambda _: run_archive(database), range(4)))
    runs.append(run_archive(database))
    assert sum(run.transfers for run in runs) == 7
    assert counts(database)["archived_history"] == before["history"]
    assert split_transfers(database) == []


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("DELETE FROM history WHERE transfer_id = %s AND version = 1", "its history is incomplete"),
        ("DELETE FROM history WHERE transfer_id = %s", "its history is incomplete"),
        ("DELETE FROM cids WHERE transfer_id = %s", "its key is missing"),
    ],
)
def test_a_transfer_with_missing_records_is_not_archived(
    database: str, statement: str, problem: str
) -> None:
    victim = ended_transfers(database)[-1].id
    with superuser(database) as connection:
        connection.execute(statement, (victim,))
    with pytest.raises(ArchiveRefused, match=f"transfer {victim}: {problem}"):
        run_archive(database, keep_cids_s=0)
    assert split_transfers(database) == []
    where = "archived_transfers" if "cids" in statement else "transfers"
    assert rows(database, f"SELECT id FROM {where} WHERE id = %s", victim) == [(victim,)]


def test_a_cid_is_known_for_the_configured_time_and_then_free_again(database: str) -> None:
    first = ended_transfers(database)[0]
    assert run_archive(database, keep_cids_s=HOUR_S).cids == 0
    assert counts(database)["cids"] == 7
    with superuser(database) as connection:
        # The time counts from the end of the transfer, and not from its creation.
        ended = "UPDATE archived_transfers SET updated_at = now() + %s WHERE owner = 2"
        connection.execute(ended, (timedelta(hours=1),))
        assert run_archive(database, keep_cids_s=0) == ArchivedBatch(cids=5)
        assert rows(database, "SELECT DISTINCT owner FROM cids") == [(2,)]
        connection.execute(ended, (timedelta(0),))
    assert run_archive(database, keep_cids_s=0) == ArchivedBatch(cids=2)
    assert counts(database)["cids"] == 0
    assert run_archive(database, keep_cids_s=0) == ArchivedBatch()

    async def repeated() -> tuple[Transfer, KnownRequest | None]:
        async with running(EngineSetup(database)) as engine:
            again = await run_to_end(engine, deposit(1, 100, "cid 1"))
            [known] = (await engine.parts.store.look([(1, "cid 1")])).known
            return again, known

    again, known = asyncio.run(repeated())
    assert again.id != first.id
    assert known is not None
    assert known.id == again.id
    assert balances(database, 1)["OUTSIDE"] == -200
    assert run_archive(database, keep_cids_s=0) == ArchivedBatch(transfers=1, answers=2, cids=1)


def test_the_archive_has_every_column(migrated: str) -> None:
    """The views show all columns too. A column that is added later must be added there."""
    columns = (
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
        " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attname"
    )
    names = ("transfers", "archived_transfers", "every_transfer")
    live, archived, every = (set(rows(migrated, columns, name)) for name in names)
    # The archive has no due and no held transfers.
    live -= {("due_lane", "text"), ("held", "boolean")}
    assert archived == every == live | {("cid_forgotten_at", "timestamp with time zone")}
    names = ("history", "archived_history", "every_history")
    live, archived, every = (set(rows(migrated, columns, name)) for name in names)
    assert archived == every == live


class LongAgo(PostgresStore):
    """A store that creates transfers with ids of three days ago."""

    async def look(self, keys: Any) -> Any:
        look = await super().look(keys)
        return look._replace(at_us=look.at_us - 3 * DAY_US)


def test_the_command_moves_old_transfers_and_prints_the_totals(database: str) -> None:
    async def lived_long_ago() -> None:
        async with running(EngineSetup(database, store=LongAgo)) as engine:
            for owner in (1, 2):
                await run_to_end(engine, deposit(owner, 100, "cid"))
        async with running(EngineSetup(database)) as engine:
            await run_to_end(engine, deposit(3, 100, "cid"))

    asyncio.run(lived_long_ago())
    with superuser(database) as connection:
        connection.execute(
            "UPDATE transfers SET updated_at = updated_at - interval '2 days 1 minute'"
            " WHERE owner <> 3"
        )
    command = ("archive", "--database", database, "--schema", SCHEMA)
    assert json.loads(tidegate(*command, "--older-than", "3", "-o", "json").stdout) == {
        "transfers": 0,
        "answers": 0,
        "attempts": 0,
        "cids": 0,
    }
    run = tidegate(*command, "--older-than", "2", "--keep-cids", "2", "--batch", "1")
    assert run.returncode == 0, run.stderr
    assert run.stdout == ("moved 2 transfers with 4 answers; dropped 0 attempts; forgot 2 cids\n")
    assert rows(database, "SELECT owner FROM transfers") == [(3,)]
    assert rows(database, "SELECT owner FROM cids") == [(3,)]


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--older-than", "1"], 2),
        (["--older-than", "30", "--keep-cids", "29"], 2),
        (["--older-than", "30", "--batch", "0"], 2),
        (["--older-than", "30", "--schema", "nowhere"], 1),
    ],
)
def test_the_command_refuses_with_one_line(migrated: str, options: list[str], code: int) -> None:
    run = tidegate("archive", "--database", migrated, *options)
    assert run.returncode == code, run
    assert run.stdout == ""
    assert len(run.stderr.splitlines()) == 1
    assert run.stderr.startswith("tidegate: ")
