"""The doctor finds a pool that no engine serves, and records that were changed by hand."""

import asyncio
import os
from pathlib import Path

import psycopg

from tests.economy.rig import Play, Rig
from tests.running import tidegate
from tidegate.store.pool_schema import pool_problems


def test_a_pool_with_a_running_engine_has_no_problems(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        id_ = rig.insert(10)
        async with rig.engine():
            await rig.until(id_, "completed")
        assert list(problems(rig)) == []

    play(scene)


def problems(rig: Rig) -> list[str]:
    with psycopg.connect(rig.database) as connection:
        return list(pool_problems(connection))


def test_a_transfer_that_no_engine_takes_is_found(play: Play, tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        id_ = rig.insert(10)
        assert problems(rig) == []
        rig.run("UPDATE inbox SET due_at = now() - interval '2 min' WHERE id = %s", id_)
        [problem] = problems(rig)
        assert problem.startswith("pool: 1 transfers are due, the oldest for 12")
        environment = os.environ | {"DATABASE_URL": rig.database, "TIDEGATE_PORT": "0"}
        arguments = ("doctor", "--data", str(tmp_path))
        run = await asyncio.to_thread(tidegate, *arguments, env=environment)
        assert run.returncode == 1
        assert "WRONG  pool: 1 transfers are due" in run.stdout

    play(scene)


def test_a_record_that_was_changed_by_hand_is_found(play: Play) -> None:
    """Changed by a role that may disable the triggers."""

    async def scene(rig: Rig) -> None:
        await rig.take(rig.insert(10))
        with rig.sql.transaction():
            rig.run("SET LOCAL session_replication_role = replica")
            rig.run("UPDATE economy.pending_transfers SET status = 'completed'")
        [problem] = problems(rig)
        assert problem.startswith("pool: 1 transfers differ")
        async with rig.engine():
            async with asyncio.timeout(10):
                while not rig.rows("SELECT FROM halts"):  # noqa: ASYNC110  No event.
                    await asyncio.sleep(0.05)
        assert rig.balance(1) == 1_000

    play(scene)
