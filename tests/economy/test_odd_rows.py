"""Manual changes of the guilds' tables: odd dates, missing settings, replaced checks."""

import asyncio
from typing import Any

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool

from tests.economy.rig import ANNA, BEN, GUILD, Play, Rig
from tidegate.core.answers import Alarm
from tidegate.economy import DailyLimitExceeded, TransferResult, TransferService


@pytest.mark.parametrize("date", ["infinity", "-infinity", "294276-12-31", "4000-01-01 BC"])
def test_a_date_that_a_library_cannot_read_is_refused(play: Play, date: str) -> None:
    async def scene(rig: Rig) -> None:
        with pytest.raises(psycopg.errors.CheckViolation):
            rig.insert(10, expires_at=date)
        assert rig.rows("SELECT * FROM economy.fn_list_pending_transfers(%s)", GUILD) == []

    play(scene)


def test_without_settings_the_defaults_apply(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        rig.run("DELETE FROM economy.guild_settings")
        id_ = rig.insert(10)
        async with rig.engine():
            await rig.until(id_, "completed")
        async with (
            AsyncConnectionPool(rig.database, min_size=1, max_size=2) as pool,
            TransferService(pool, event_pool_enabled=False) as service,
        ):
            request: dict[str, Any] = {"guild_id": GUILD, "initiator_id": BEN, "target_id": ANNA}
            result = await service.transfer_currency(**request, amount=10)
            assert isinstance(result, TransferResult)
            with pytest.raises(DailyLimitExceeded):
                await service.transfer_currency(**request, amount=501)

    play(scene)


def test_a_replaced_check_is_used(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        ours = "SELECT economy._checks_are_ours() AS ours"
        assert rig.rows(ours) == [{"ours": True}], "else the checks are made one by one"
        rig.run(
            "CREATE OR REPLACE FUNCTION economy.fn_check_transfer_cooldown(p_transfer_id uuid)"
            " RETURNS integer LANGUAGE sql AS 'SELECT 0'"
        )
        assert rig.rows(ours) == [{"ours": False}]
        id_ = rig.insert(10)
        async with rig.engine():
            row = await rig.when(id_, lambda row: row["retry_count"] > 0)
        assert row["status"] == "checking"
        [attempt] = rig.rows("SELECT DISTINCT reason FROM attempts WHERE transfer_id = %s", id_)
        assert attempt == {"reason": "cooldown"}
        assert rig.balance(ANNA) == 1_000

    play(scene)


def test_a_replaced_check_is_used_by_the_next_transfer_of_a_running_session(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        replaced = (
            "CREATE OR REPLACE FUNCTION economy.fn_check_transfer_balance(p_transfer_id uuid)"
            " RETURNS integer LANGUAGE sql AS 'SELECT 0'"
        )
        [ours] = rig.rows(
            "SELECT pg_get_functiondef('economy.fn_check_transfer_balance(uuid)'::regprocedure)"
        )
        async with rig.engine():
            for _ in range(8):  # The engine's sessions have plans by then.
                await rig.until(rig.insert(10), "completed")
            rig.run(replaced)
            refused = rig.insert(10)
            row = await rig.when(refused, lambda row: row["retry_count"] > 0)
            assert row["status"] == "checking"
            assert row["checks"] == {"balance": 0, "cooldown": 1, "daily_limit": 1}
            rig.run(ours["pg_get_functiondef"])
            await rig.until(rig.insert(10), "completed")
            await rig.until(refused, "completed")
        assert rig.balance(ANNA) == 1_000 - 10 * 10

    play(scene)


def test_a_refusal_and_the_pools_record_of_it_are_written_together(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        rig.run(
            "ALTER TABLE economy.pending_transfers ADD CONSTRAINT unlucky"
            " CHECK (status <> 'rejected' OR amount <> 13)"
        )
        bad, late = (rig.insert(amount, expires_at="2020-01-01") for amount in (13, 14))
        good = rig.insert(10)
        async with rig.engine() as engine:
            await asyncio.gather(rig.until(late, "rejected"), rig.until(good, "completed"))
            for _ in range(200):
                [row] = rig.rows("SELECT outcome, error FROM inbox WHERE id = %s", bad)
                if row["error"]:
                    break
                await asyncio.sleep(0.05)
            assert row["outcome"] is None, "neither record contains the refusal"
            assert "unlucky" in row["error"]
            assert rig.pending(bad)["status"] == "pending"
            assert any("unlucky" in a.cause for a in rig.alerts if a.alarm is Alarm.PAGE)
            assert not engine.died.done()
            rig.run("ALTER TABLE economy.pending_transfers DROP CONSTRAINT unlucky")
            rig.run("UPDATE inbox SET due_at = now() WHERE id = %s", bad)
            await rig.until(bad, "rejected")

    play(scene)
