"""What the doctor says of a pool that nobody serves, or that somebody has tampered with."""

import asyncio
import os
from pathlib import Path

import psycopg

from tests.economy.rig import Play, Rig
from tests.running import tidegate
from tidegate.store.pool_schema import ailments


def test_a_pool_that_is_served_is_well(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        id_ = rig.insert(10)
        async with rig.engine():
            await rig.until(id_, "completed")
        assert list(told(rig)) == []

    play(scene)


def told(rig: Rig) -> list[str]:
    with psycopg.connect(rig.database) as connection:
        return list(ailments(connection))


def test_a_transfer_that_nobody_takes_is_found(play: Play, tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        id_ = rig.insert(10)
        assert told(rig) == []
        rig.run("UPDATE inbox SET due_at = now() - interval '2 min' WHERE id = %s", id_)
        [said] = told(rig)
        assert said.startswith("pool: 1 transfers are due, the oldest for 12")
        here = os.environ | {"DATABASE_URL": rig.database, "TIDEGATE_PORT": "0"}
        words = ("doctor", "--data", str(tmp_path))
        run = await asyncio.to_thread(tidegate, *words, env=here)
        assert run.returncode == 1
        assert "WRONG  pool: 1 transfers are due" in run.stdout

    play(scene)


def test_a_record_that_was_tampered_with_is_found(play: Play) -> None:
    """By whoever may switch the triggers off."""

    async def scene(rig: Rig) -> None:
        await rig.take(rig.insert(10))
        with rig.sql.transaction():
            rig.run("SET LOCAL session_replication_role = replica")
            rig.run("UPDATE economy.pending_transfers SET status = 'completed'")
        [said] = told(rig)
        assert said.startswith("pool: 1 transfers differ")
        async with rig.engine():
            async with asyncio.timeout(10):
                while not rig.rows("SELECT FROM halts"):  # noqa: ASYNC110  Nobody tells us.
                    await asyncio.sleep(0.05)
        assert rig.balance(1) == 1_000

    play(scene)
