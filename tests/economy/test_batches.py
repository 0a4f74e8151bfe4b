"""Batches of checks: at once or one by one, each transfer gets the same answer."""

from uuid import UUID, uuid4

import psycopg
import pytest

from tests.economy.rig import ANNA, BEN, CARA, GUILD, Play, Rig, Row

CHECK = "SELECT * FROM economy._check_transfers(%s)"
RECORD = "SELECT economy._record_transfers(%s, %s, %s, %s, %s)"
# The same check in other words: not ours any more, so that all checks are made one by one.
REPLACE = """
CREATE OR REPLACE FUNCTION economy.fn_check_transfer_cooldown(p_transfer_id uuid) RETURNS integer
LANGUAGE plpgsql AS 'BEGIN RETURN economy._check_one(p_transfer_id, ''cooldown''); END'
"""
PASSED = {"balance": 1, "cooldown": 1, "daily_limit": 1}


def prepare(rig: Rig, at_once: bool) -> None:
    if not at_once:
        rig.run(REPLACE)
    assert rig.rows("SELECT economy._checks_are_ours() AS ours") == [{"ours": at_once}]


def verdicts(rows: list[Row]) -> list[tuple[str, str]]:
    return [(row["verdict"], row["reason"]) for row in rows]


@pytest.mark.parametrize("at_once", [True, False])
def test_after_a_refusal_for_the_limit_the_next_of_its_batch_cools_down(
    play: Play, at_once: bool
) -> None:
    async def scene(rig: Rig) -> None:
        prepare(rig, at_once)
        before, large, after = (rig.insert(amount) for amount in (10, 501, 20))
        other = rig.insert(30, initiator=BEN, target=ANNA)
        ids = [before, large, other, after]
        await rig.take(*ids)
        with rig.listening() as ears:
            rows = rig.rows(CHECK, ids)
            told = ears.events("transfer_check_result")
        assert verdicts(rows) == [
            ("done", ""),
            ("unknown", "daily_limit"),
            ("done", ""),
            ("unknown", "cooldown"),
        ]
        assert [rows[0]["retry_s"], rows[2]["retry_s"], rows[3]["retry_s"]] == [None, None, 300]
        assert 300 <= rows[1]["retry_s"] <= 86_400, "until the next day, or the cooldown's end"
        found = {id_: rig.pending(id_)["checks"] for id_ in ids}
        assert found == {
            before: PASSED,
            large: PASSED | {"daily_limit": 0},
            other: PASSED,
            after: PASSED | {"cooldown": 0},
        }
        assert [(UUID(e["transfer_id"]), e["check_type"], e["result"]) for e in told] == [
            (id_, name, found[id_][name]) for id_ in ids for name in PASSED
        ]
        throttled = rig.rows(
            "SELECT member_id FROM economy.throttles WHERE guild_id = %s"
            " AND throttled_until IS NOT NULL",
            GUILD,
        )
        assert throttled == [{"member_id": ANNA}]

    play(scene)


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("rule", ["cooldown_s = 0", "cooldown_after = 'every_transfer'"])
def test_without_a_cooldown_for_it_a_refusal_does_not_stop_the_next(
    play: Play, rule: str, at_once: bool
) -> None:
    async def scene(rig: Rig) -> None:
        prepare(rig, at_once)
        rig.run(f"UPDATE economy.guild_settings SET {rule}")
        ids = [rig.insert(501), rig.insert(20)]
        await rig.take(*ids)
        assert verdicts(rig.rows(CHECK, ids)) == [("unknown", "daily_limit"), ("done", "")]

    play(scene)


@pytest.mark.parametrize("at_once", [True, False])
def test_answers_come_in_the_order_of_the_ids_whatever_they_are(play: Play, at_once: bool) -> None:
    async def scene(rig: Rig) -> None:
        prepare(rig, at_once)
        paid = rig.insert(10)
        async with rig.engine():
            await rig.until(paid, "completed")
        late, poor, good = (rig.insert(n, initiator=BEN, target=ANNA) for n in (501, 499, 30))
        nobody = rig.insert(10, initiator=CARA)
        await rig.take(late, poor, good, nobody)
        rig.run("SET session_replication_role TO replica")
        rig.run(
            "UPDATE economy.pending_transfers SET expires_at = now() WHERE transfer_id = %s", late
        )
        rig.run("UPDATE ledger_accounts SET available = 100 WHERE book = 'member:2'")
        rig.run("RESET session_replication_role")
        rows = rig.rows(CHECK, [nobody, late, uuid4(), good, paid, poor])
        assert verdicts(rows) == [
            ("rejected", "SOURCE_ACCOUNT_NOT_FOUND"),
            ("unknown", "expired"),
            ("unfounded", "the pool does not have it"),
            ("done", ""),
            ("unfounded", "the pool has it as completed"),
            ("unknown", "balance"),
        ]
        assert [row["retry_s"] for row in rows] == [None, 1, None, None, None, None]
        assert rig.pending(late)["checks"] == {}, (
            "what is late is not checked, and throttles nobody"
        )

    play(scene)


def test_what_the_pool_does_not_have_cannot_be_recorded(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        id_ = rig.insert(10)
        await rig.take(id_)
        with pytest.raises(psycopg.errors.NoDataFound):
            rig.run(RECORD, [id_, uuid4()], ["REJECTED"] * 2, [0, 0], [0, 0], ["", ""])
        assert rig.pending(id_)["status"] == "checking"

    play(scene)
