"""Processes that were started before the guild economy was installed run beside the others."""

import asyncio

import psycopg

from tests.conftest import SCHEMA
from tests.economy.rig import ANNA, Play, Rig
from tests.store.scenario import superuser
from tidegate.app import Setup, open_gate

RESTS = """
    UPDATE transfers
       SET state = 'DEBITING', lane = 'ledger', due_lane = 'ledger', due_at = now(), attempts = 0
     WHERE id = %s
"""
STANDS = "SELECT state, attempts FROM transfers WHERE id = %s"


def rename(connection: psycopg.Connection, old: str, new: str) -> None:
    connection.execute(f"ALTER SCHEMA {old} RENAME TO {new}")


def test_a_process_started_before_the_install_leaves_pool_transfers_alone(
    play: Play, database: str
) -> None:
    """It would move them without the pool's own record, and without counting the daily limit."""

    async def scene(rig: Rig) -> None:
        id_ = rig.insert(100, ANNA)
        await rig.approve(id_)
        with superuser(database) as connection:
            rename(connection, "economy", "elsewhere")
            async with open_gate(Setup(database, SCHEMA, scan_s=0.05)) as older:
                assert not older.has_economy
                rename(connection, "elsewhere", "economy")
                connection.execute(RESTS, (id_,))
                await asyncio.sleep(1.0)
            assert connection.execute(STANDS, (id_,)).fetchone() == ("DEBITING", 0)
        async with rig.engine():
            assert (await rig.until(id_, "completed"))["status"] == "completed"
        assert rig.balance(ANNA) == 900, "she had 1 000"

    play(scene)
