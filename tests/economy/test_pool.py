"""Pool transfers from the INSERT to their end: states, checks, retries and expiry."""

import psycopg
import pytest

from tests.economy.rig import ANNA, BEN, CARA, GUILD, Play, Rig

PASSED = {"balance": 1, "cooldown": 1, "daily_limit": 1}


def test_an_inserted_transfer_is_checked_and_completed(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        async with rig.engine():
            row = await rig.until(rig.insert(100), "completed")
        assert row["checks"] == PASSED
        assert (row["retry_count"], row["round"], row["metadata"]) == (0, 1, {})
        assert (rig.balance(ANNA), rig.balance(BEN)) == (900, 1_100)
        assert (row["expires_at"] - row["created_at"]).total_seconds() == 24 * 3600

    play(scene)


def test_a_member_without_an_account_can_be_paid(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        async with rig.engine():
            await rig.until(rig.insert(100, target=CARA), "completed")
        assert rig.balance(CARA) == 100

    play(scene)


def test_a_transfer_waits_for_missing_money(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        rig.run("UPDATE economy.guild_settings SET daily_limit = 0")
        async with rig.engine():
            id_ = rig.insert(1_500)
            row = await rig.when(id_, lambda r: r["retry_count"] == 2)
            assert row["status"] == "checking"
            assert row["checks"] == {**PASSED, "balance": 0}
            assert 1.0 < rig.due_in_s(id_) <= 2.0
            await rig.endow(600, ANNA)
            row = await rig.until(id_, "completed")
        assert row["checks"] == PASSED
        assert (rig.balance(ANNA), rig.balance(BEN)) == (100, 2_500)

    play(scene)


def test_a_transfer_above_the_daily_limit_waits_until_the_next_utc_day(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        async with rig.engine():
            await rig.until(rig.insert(300), "completed")
            id_ = rig.insert(201)
            row = await rig.when(id_, lambda r: "daily_limit" in r["checks"])
            assert row["checks"] == {**PASSED, "daily_limit": 0}
            assert (row["status"], row["retry_count"]) == ("checking", 0)
            [(midnight)] = rig.rows(
                "SELECT extract(epoch FROM (date_trunc('day', now() AT TIME ZONE 'UTC')"
                " + interval '1 day') AT TIME ZONE 'UTC' - now())::float8 AS s"
            )
            assert abs(rig.due_in_s(id_) - max(midnight["s"], 300.0)) < 2.0
            # Pretend that the day has ended.
            rig.run("UPDATE economy.throttles SET utc_day = utc_day - 1, throttled_until = NULL")
            rig.run("UPDATE transfers SET due_at = now() WHERE id = %s", id_)
            row = await rig.until(id_, "completed")
        assert row["checks"] == PASSED
        assert rig.balance(BEN) == 1_501

    play(scene)


def test_a_payment_that_gets_its_lock_after_midnight_counts_for_the_new_day(
    play: Play,
) -> None:
    """Another payment of the same member started later, on the new day, and got the lock first."""

    async def scene(rig: Rig) -> None:
        rig.run(
            "INSERT INTO economy.throttles (guild_id, member_id, utc_day, sent)"
            " VALUES (%s, %s, (now() AT TIME ZONE 'UTC')::date + 1, 450)",
            GUILD,
            ANNA,
        )
        async with rig.engine():
            await rig.until(rig.insert(50), "completed")
            row = await rig.when(rig.insert(1), lambda r: "daily_limit" in r["checks"])
        assert row["checks"] == {**PASSED, "daily_limit": 0}
        [throttle] = rig.rows(
            "SELECT sent, utc_day - (now() AT TIME ZONE 'UTC')::date AS ahead"
            " FROM economy.throttles WHERE member_id = %s",
            ANNA,
        )
        assert throttle == {"sent": 500, "ahead": 1}

    play(scene)


def test_a_refusal_for_the_limit_starts_a_cooldown(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        async with rig.engine():
            await rig.when(rig.insert(501), lambda r: "daily_limit" in r["checks"])
            id_ = rig.insert(10)
            row = await rig.when(id_, lambda r: "daily_limit" in r["checks"])
            assert row["checks"] == {**PASSED, "cooldown": 0}
            assert 290 < rig.due_in_s(id_) <= 300
            assert (row["status"], row["retry_count"]) == ("checking", 0)
            rig.run("UPDATE economy.throttles SET throttled_until = now()")
            rig.run("UPDATE transfers SET due_at = now() WHERE id = %s", id_)
            await rig.until(id_, "completed")

    play(scene)


def test_a_guild_may_require_a_cooldown_after_every_transfer(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        rig.run("UPDATE economy.guild_settings SET cooldown_after = 'every_transfer'")
        async with rig.engine():
            await rig.until(rig.insert(10), "completed")
            id_ = rig.insert(10)
            row = await rig.when(id_, lambda r: "daily_limit" in r["checks"])
            assert row["checks"] == {**PASSED, "cooldown": 0}
        assert rig.balance(BEN) == 1_010

    play(scene)


def test_the_government_is_exempt_from_cooldown_and_limit_but_not_from_balance(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        rig.run("INSERT INTO economy.government_accounts VALUES (%s, %s)", GUILD, ANNA)
        async with rig.engine():
            await rig.until(rig.insert(600), "completed")
            row = await rig.when(rig.insert(600), lambda r: r["retry_count"] > 0)
        assert row["checks"] == {**PASSED, "balance": 0}
        assert rig.balance(ANNA) == 400

    play(scene)


def test_a_guild_may_have_rules_of_its_own(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        rig.run("INSERT INTO economy.guild_settings (guild_id, daily_limit) VALUES (%s, 0)", GUILD)
        async with rig.engine():
            await rig.until(rig.insert(1_000), "completed")

    play(scene)


def test_a_missing_or_disabled_initiator_is_rejected_at_once(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        async with rig.engine():
            row = await rig.until(rig.insert(1, initiator=CARA), "rejected")
            assert row["retry_count"] == 0
            rig.run("UPDATE ledger_accounts SET status = 'DISABLED' WHERE book = 'member:1'")
            await rig.until(rig.insert(1), "rejected")

    play(scene)


def test_if_the_target_account_is_disabled_the_initiator_keeps_the_money(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        rig.run("UPDATE ledger_accounts SET status = 'DISABLED' WHERE book = 'member:2'")
        async with rig.engine():
            await rig.until(rig.insert(100), "rejected")
        assert (rig.balance(ANNA), rig.balance(BEN)) == (1_000, 1_000)
        assert rig.rows("SELECT sent FROM economy.throttles WHERE member_id = 1")[0]["sent"] == 0

    play(scene)


def test_after_ten_retries_it_is_rejected(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        rig.run("UPDATE economy.guild_settings SET daily_limit = 0")
        id_ = rig.insert(5_000)
        waits = []
        async with rig.engine():
            for count in range(1, 11):
                await rig.when(id_, lambda r, n=count: r["retry_count"] == n)  # type: ignore[misc]
                waits.append(rig.due_in_s(id_))
                rig.run("UPDATE transfers SET due_at = now() WHERE id = %s", id_)
            row = await rig.until(id_, "rejected")
        assert row["retry_count"] == 10
        for wait, exact in zip(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300], strict=True):
            assert exact - 1.0 < wait <= exact

    play(scene)


def test_an_expired_transfer_is_rejected_even_if_it_could_be_paid(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        id_ = rig.insert(10, expires_at="2020-01-01")
        async with rig.engine():
            await rig.until(id_, "rejected")
        assert rig.balance(ANNA) == 1_000
        [row] = rig.rows("SELECT outcome, refusal FROM inbox WHERE id = %s", id_)
        assert row == {"outcome": "refused", "refusal": "EXPIRED"}
        assert rig.rows("SELECT FROM transfers WHERE id = %s", id_) == []

    play(scene)


def test_a_waiting_transfer_is_rejected_when_it_expires(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        [soon] = rig.rows("SELECT now() + interval '1500 milliseconds' AS at")
        id_ = rig.insert(501, expires_at=soon["at"])
        async with rig.engine():
            await rig.when(id_, lambda r: "daily_limit" in r["checks"])
            row = await rig.until(id_, "rejected")
        assert 0 <= (row["updated_at"] - soon["at"]).total_seconds() < 2.0

    play(scene)


def test_an_approved_transfer_does_not_expire(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        [soon] = rig.rows("SELECT now() + interval '1500 milliseconds' AS at")
        id_ = rig.insert(100, expires_at=soon["at"])
        await rig.approve(id_)
        [late] = rig.rows("SELECT pg_sleep(1.6), now() > %s AS late", soon["at"])
        assert late
        async with rig.engine():
            await rig.until(id_, "completed")

    play(scene)


def test_two_approved_transfers_cannot_exceed_the_limit_together(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        ids = [rig.insert(300), rig.insert(300)]
        await rig.approve(*ids)
        async with rig.engine():
            for id_ in ids:
                await rig.when(id_, lambda r: r["status"] == "completed" or r["round"] > 1)
            [late] = [r for r in map(rig.pending, ids) if r["status"] != "completed"]
            late = await rig.when(late["transfer_id"], lambda r: "daily_limit" in r["checks"])
        assert (late["status"], late["round"]) == ("checking", 2)
        assert late["checks"]["daily_limit"] == 0
        assert rig.balance(ANNA) == 700

    play(scene)


def test_two_approved_transfers_cannot_overdraw_together(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        rig.run("UPDATE economy.guild_settings SET daily_limit = 0")
        ids = [rig.insert(600), rig.insert(600)]
        await rig.approve(*ids)
        async with rig.engine():
            for id_ in ids:
                await rig.when(id_, lambda r: r["status"] == "completed" or r["retry_count"] > 1)
        assert sorted(rig.pending(id_)["status"] for id_ in ids) == ["checking", "completed"]
        assert (rig.balance(ANNA), rig.balance(BEN)) == (400, 1_600)

    play(scene)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE economy.pending_transfers SET status = 'completed'",
        "UPDATE economy.pending_transfers SET amount = 1",
        "UPDATE economy.pending_transfers SET expires_at = now()",
        "DELETE FROM economy.pending_transfers",
        "SELECT economy._check_and_approve_transfer(transfer_id) FROM economy.pending_transfers",
    ],
)
def test_the_two_records_cannot_be_made_to_differ(play: Play, statement: str) -> None:
    async def scene(rig: Rig) -> None:
        id_ = rig.insert(10)
        if not statement.startswith("SELECT"):
            with pytest.raises(psycopg.errors.IntegrityConstraintViolation, match="would differ"):
                rig.run(statement)
            assert rig.pending(id_)["status"] == "pending"
        await rig.take(id_)
        rig.run(
            "UPDATE economy.pending_transfers SET checks ="
            """ '{"balance": 1, "cooldown": 1, "daily_limit": 1}'"""
        )
        with pytest.raises(psycopg.errors.IntegrityConstraintViolation, match="would differ"):
            rig.run(statement)
        assert rig.pending(id_)["status"] == "checking"

    play(scene)
