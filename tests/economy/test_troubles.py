"""Every transfer ends and is made once, after any crash or lost message."""

import asyncio
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool

from tests.economy.rig import ANNA, BEN, GUILD, Play, Rig, rigged
from tests.engine.proxy import proxied
from tests.forked import Forked
from tidegate.economy import TransferEventPoolCoordinator
from tidegate.store.pool_schema import STATEMENTS

pytestmark = pytest.mark.slow

MEMBERS, CROWD, START, LIMIT = 50, 2_000, 400, 500
KILLS = 5


def assert_books_correct(rig: Rig, issued: int) -> None:
    """No money was lost or created, no account is overdrawn, and ends match the ledger."""
    [books] = rig.rows("SELECT sum(available + held) AS total FROM ledger_accounts")
    assert books["total"] == 0
    [held] = rig.rows(
        "SELECT sum(available) AS held, min(available) AS least FROM ledger_accounts"
        " WHERE book LIKE 'member:%%'"
    )
    assert (held["held"], held["least"] >= 0) == (issued, True)
    wrong = rig.rows(
        "SELECT p.transfer_id, p.status, coalesce(o.debits, 0) AS debits,"
        " coalesce(o.credits, 0) AS credits FROM economy.pending_transfers AS p LEFT JOIN ("
        " SELECT transfer_id, -sum(delta) FILTER (WHERE verb = 'debit') AS debits,"
        " sum(delta) FILTER (WHERE verb = 'credit') AS credits"
        " FROM ledger_operations GROUP BY transfer_id) AS o USING (transfer_id)"
        " WHERE (coalesce(o.debits, 0), coalesce(o.credits, 0)) <>"
        " (CASE p.status WHEN 'completed' THEN p.amount ELSE 0 END,"
        "  CASE p.status WHEN 'completed' THEN p.amount ELSE 0 END)"
    )
    assert wrong == []
    [differing] = rig.rows(STATEMENTS["differing"])
    assert differing["count"] == 0


def assert_limits_held(rig: Rig) -> None:
    exceeded = rig.rows(
        "SELECT initiator_id, sum(amount) FROM economy.pending_transfers"
        " WHERE status = 'completed' GROUP BY initiator_id HAVING sum(amount) > %s",
        LIMIT,
    )
    assert exceeded == []


async def wait_until_idle(rig: Rig, within_s: float = 60.0) -> None:
    """Wait until no transfer is approved and none is due for a while."""
    until_s = time.monotonic() + within_s
    while rig.rows(
        "(SELECT FROM transfers WHERE lane IS NOT NULL"
        " AND (state <> 'CHECKING' OR due_at < now() + interval '30 s') LIMIT 1)"
        " UNION ALL (SELECT FROM inbox WHERE outcome IS NULL LIMIT 1)"
    ):
        assert time.monotonic() < until_s, "still at work"
        await asyncio.sleep(0.1)


def crowd(database: str, count: int, seed: int) -> None:
    dice = random.Random(seed)
    rows = []
    for _ in range(count):
        payer, payee = dice.sample(range(1, MEMBERS + 1), 2)
        rows.append((GUILD, payer, payee, dice.choice((1, 20, 90, 240, 380))))
    with psycopg.connect(database, autocommit=True) as connection:
        connection.cursor().executemany(
            "INSERT INTO economy.pending_transfers (guild_id, initiator_id, target_id, amount)"
            " VALUES (%s, %s, %s, %s)",
            rows,
        )


@pytest.mark.parametrize("listeners_cut", [False, True], ids=["undisturbed", "listeners are cut"])
def test_many_concurrent_transfers_exceed_no_limit_and_overdraw_no_account(
    database: str, listeners_cut: bool
) -> None:
    async def run() -> None:
        async with rigged(database) as rig, AsyncConnectionPool(database, min_size=1) as pool:
            await rig.endow(START, *range(1, MEMBERS + 1))
            async with TransferEventPoolCoordinator(pool), TransferEventPoolCoordinator(pool):
                cutting = asyncio.create_task(
                    cut_listeners(rig) if listeners_cut else asyncio.sleep(0)
                )
                await asyncio.to_thread(crowd, database, CROWD, 7)
                await wait_until_idle(rig)
                cutting.cancel()
            assert_books_correct(rig, MEMBERS * START)
            assert_limits_held(rig)
            ended = rig.rows(
                "SELECT status, count(*) FROM economy.pending_transfers GROUP BY status"
            )
            counts = {row["status"]: row["count"] for row in ended}
            assert sum(counts.values()) == CROWD
            assert counts["completed"] > MEMBERS
            assert counts["checking"] > MEMBERS

    asyncio.run(run())


async def cut_listeners(rig: Rig) -> None:
    """Every second, close the connections of all listeners."""
    while True:
        await asyncio.sleep(1.0)
        rig.run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE query LIKE 'LISTEN%%' AND datname = current_database()"
        )


@contextmanager
def bot(database: str) -> Iterator[Forked]:
    child = Forked(["tests.economy.bot", database])
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        yield child
    finally:
        child.ended()


def test_a_program_that_is_killed_repeatedly_makes_each_transfer_once(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        rig.run("UPDATE economy.guild_settings SET daily_limit = 0")
        ids = [rig.insert(1, *((ANNA, BEN) if n % 2 else (BEN, ANNA))) for n in range(200)]
        dice, kills = random.Random(3), 0
        while kills < KILLS:
            with bot(rig.database) as child:
                await asyncio.sleep(dice.random() * 0.08)
                child.kill()
            kills += 1
            ids += [rig.insert(1) for _ in range(20)]
        # Pretend that the leases of the killed programs have expired.
        rig.run("UPDATE transfers SET due_at = now() WHERE lane IS NOT NULL")
        with bot(rig.database):
            for id_ in ids:
                await rig.until(id_, "completed")
        assert_books_correct(rig, 2_000)
        assert len(ids) == 200 + 20 * KILLS

    play(scene)


# The moments at which a program is killed during one transfer, and the status of it then.
DEATHS = [
    ("before a COMMIT", "pending"),
    ("after a COMMIT", "checking"),
    ("before a COMMIT", "checking"),
    ("after a COMMIT", "approved"),
    ("before a COMMIT", "approved"),
    ("after a COMMIT", "completed"),
]


def test_a_program_killed_at_any_commit_makes_the_transfer_once(
    play: Play,
) -> None:
    async def scene(rig: Rig) -> None:
        for moment, (where, status) in enumerate(DEATHS, 1):
            id_ = rig.insert(10)
            command = [sys.executable, "-m", "tests.economy.bot", rig.database, str(moment)]
            run = partial(subprocess.run, capture_output=True, text=True, timeout=30, check=False)
            killed = await asyncio.to_thread(run, command)
            assert (killed.returncode, killed.stderr) == (-signal.SIGKILL, f"killed {where}\n")
            assert rig.pending(id_)["status"] == status
            assert rig.balance(ANNA) == 1_000 - 10 * (moment - (status != "completed"))
            async with rig.engine():
                await rig.until(id_, "completed")
            assert rig.balance(BEN) == 1_000 + 10 * moment
        assert_books_correct(rig, 2_000)

    play(scene)


@pytest.mark.parametrize("commit", ["approves", "executes"])
def test_a_commit_whose_reply_is_lost_has_one_effect(database: str, commit: str) -> None:
    """On new sessions: the proxy recognises a COMMIT by its text, and drops the first reply."""

    async def run(directory: Path) -> None:
        async with rigged(database) as rig:
            await rig.endow(1_000, ANNA, BEN)
            id_ = rig.insert(10)
            if commit == "executes":
                await rig.approve(id_)
            async with proxied(database, directory) as (address, proxy):
                proxy.swallow = 1
                async with rigged(database, address) as other, other.engine():
                    await rig.until(id_, "completed")
                assert (proxy.swallow, proxy.swallowed) == (0, 1)
            assert_books_correct(rig, 2_000)
            assert (rig.balance(ANNA), rig.balance(BEN)) == (990, 1_010)

    with tempfile.TemporaryDirectory(prefix="tg") as name:
        asyncio.run(run(Path(name)))


def test_without_notifications_every_transfer_ends(play: Play) -> None:
    """There is no listener: the scan finds due transfers."""

    async def scene(rig: Rig) -> None:
        ids = [rig.insert(1) for _ in range(20)]
        async with rig.engine(scan_s=0.3):
            for id_ in ids:
                await rig.until(id_, "completed")
        assert_books_correct(rig, 2_000)

    play(scene)


def test_a_lost_connection_is_opened_again(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        async with (
            AsyncConnectionPool(rig.database, min_size=1) as pool,
            TransferEventPoolCoordinator(pool, scan_s=0.3),
        ):
            for _ in range(5):
                rig.run(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE application_name = 'tidegate' AND datname = current_database()"
                    " AND pid <> pg_backend_pid()"
                )
                await rig.until(rig.insert(10), "completed")
        assert_books_correct(rig, 2_000)

    play(scene)
