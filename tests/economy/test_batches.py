"""Batches of checks: a transfer gets the same answer in a batch as by itself."""

from uuid import UUID, uuid4

import psycopg
import pytest

from tests.economy.rig import ANNA, BEN, CARA, GUILD, Play, Rig, Row
from tidegate.systems.guild import postgres

CHECK = "SELECT * FROM economy._check_transfers(%s)"
CHECK_ALONE = """
SELECT c.* FROM unnest(%s::uuid[]) WITH ORDINALITY AS k (id, ordinal)
 CROSS JOIN LATERAL economy._check_transfer(k.id) AS c ORDER BY k.ordinal
"""
OLDER_CHECK = """
SELECT verdict, reason, retry_s
  FROM economy._check_transfers(%(ids)s::uuid[])
"""
APPROVE = "SELECT * FROM economy._check_batch(%s, true)"
RECORD = "SELECT economy._record_transfers(%s, %s, %s, %s, %s)"
# The same check, but replaced: checks that are not ours are made one by one.
REPLACE = """
CREATE OR REPLACE FUNCTION economy.fn_check_transfer_cooldown(p_transfer_id uuid) RETURNS integer
LANGUAGE plpgsql AS 'BEGIN RETURN economy._check_one(p_transfer_id, ''cooldown''); END'
"""
PASSED = {"balance": 1, "cooldown": 1, "daily_limit": 1}


# Rules of guilds. Each guild has a twin with the same members and the same transfers.
RULES = (
    "(500, 300, 'daily_limit')",
    "(500, 0, 'daily_limit')",
    "(100, 300, 'every_transfer')",
    "(0, 60, 'daily_limit')",
)
TWIN = 100
# Members with and without an account, a cooldown and earlier payments, in all statuses.
MEMBERS = """
INSERT INTO ledger_accounts (owner, book, asset_id, available, status)
SELECT g, 'member:' || m, 6, CASE m % 3 WHEN 0 THEN 1000 WHEN 1 THEN 60 ELSE 0 END,
       (ARRAY['ACTIVE', 'ACTIVE', 'ACTIVE', 'FROZEN', 'DISABLED'])[m % 5 + 1]
  FROM unnest(%(guilds)s::bigint[]) AS g, generate_series(100, 129) AS m WHERE m % 7 > 0;
INSERT INTO economy.throttles (guild_id, member_id, throttled_until, utc_day, sent)
SELECT g, m, CASE m % 4 WHEN 1 THEN now() + m * interval '1 hour' WHEN 2 THEN now() END,
       (now() AT TIME ZONE 'UTC')::date - m % 2, 40 * (m % 13)
  FROM unnest(%(guilds)s::bigint[]) AS g, generate_series(100, 129) AS m WHERE m % 6 > 0;
INSERT INTO economy.government_accounts
SELECT g, m FROM unnest(%(guilds)s::bigint[]) AS g, generate_series(100, 129, 4) AS m;
"""
INSERT_TRANSFERS = """
INSERT INTO economy.pending_transfers (guild_id, initiator_id, target_id, amount)
SELECT g, m, 1, a
  FROM unnest(%(guilds)s::bigint[]) AS g, generate_series(100, 129) AS m,
       unnest(ARRAY[50, 501, 20]) AS a
"""
OF_GUILDS = """
SELECT transfer_id FROM economy.pending_transfers
 WHERE guild_id = ANY(%s) ORDER BY guild_id, initiator_id, amount = 20, amount
"""
THROTTLES = """
SELECT guild_id %% 100 AS guild, member_id, throttled_until, utc_day::text, sent
  FROM economy.throttles WHERE guild_id = ANY(%s) ORDER BY guild_id, member_id
"""


def prepare(rig: Rig, at_once: bool) -> None:
    if not at_once:
        rig.run(REPLACE)
    assert rig.rows("SELECT economy._checks_are_ours() AS ours") == [{"ours": at_once}]


def verdicts(rows: list[Row]) -> list[tuple[str, str]]:
    return [(row["verdict"], row["reason"]) for row in rows]


@pytest.mark.parametrize("at_once", [True, False])
def test_a_refusal_for_the_limit_starts_the_cooldown_for_the_rest_of_its_batch(
    play: Play, at_once: bool
) -> None:
    async def scene(rig: Rig) -> None:
        prepare(rig, at_once)
        before, large, after = (rig.insert(amount) for amount in (10, 501, 20))
        other = rig.insert(30, initiator=BEN, target=ANNA)
        ids = [before, large, other, after]
        await rig.take(*ids)
        with rig.listening() as received:
            rows = rig.rows(CHECK, ids)
            events = received.events("transfer_check_result")
        assert verdicts(rows) == [
            ("done", ""),
            ("unknown", "daily_limit"),
            ("done", ""),
            ("unknown", "cooldown"),
        ]
        assert [rows[0]["retry_s"], rows[2]["retry_s"], rows[3]["retry_s"]] == [None, None, 300]
        assert 300 <= rows[1]["retry_s"] <= 86_400, "until the next day, or the cooldown's end"
        checks = {id_: rig.pending(id_)["checks"] for id_ in ids}
        assert checks == {
            before: PASSED,
            large: PASSED | {"daily_limit": 0},
            other: PASSED,
            after: PASSED | {"cooldown": 0},
        }
        assert [(UUID(e["transfer_id"]), e["check_type"], e["result"]) for e in events] == [
            (id_, name, checks[id_][name]) for id_ in ids for name in PASSED
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
def test_if_a_refusal_starts_no_cooldown_the_next_transfer_passes(
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
def test_answers_come_in_the_order_of_the_ids(play: Play, at_once: bool) -> None:
    async def scene(rig: Rig) -> None:
        prepare(rig, at_once)
        paid = rig.insert(10)
        async with rig.engine():
            await rig.until(paid, "completed")
        late, poor, good = (rig.insert(n, initiator=BEN, target=ANNA) for n in (501, 499, 30))
        missing = rig.insert(10, initiator=CARA)
        await rig.take(late, poor, good, missing)
        rig.run("SET session_replication_role TO replica")
        rig.run(
            "UPDATE economy.pending_transfers SET expires_at = now() WHERE transfer_id = %s", late
        )
        rig.run("UPDATE ledger_accounts SET available = 100 WHERE book = 'member:2'")
        rig.run("RESET session_replication_role")
        rows = rig.rows(CHECK, [missing, late, uuid4(), good, paid, poor])
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
            "an expired transfer is not checked, and starts no cooldown"
        )

    play(scene)


def test_a_transfer_that_is_not_in_the_pool_cannot_be_recorded(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        id_ = rig.insert(10)
        await rig.take(id_)
        with pytest.raises(psycopg.errors.NoDataFound):
            rig.run(RECORD, [id_, uuid4()], ["REJECTED"] * 2, [0, 0], [0, 0], ["", ""])
        assert rig.pending(id_)["status"] == "checking"

    play(scene)


def test_a_batch_and_single_checks_have_the_same_results(play: Play) -> None:
    """Both run in one transaction, so that both see the same time."""

    async def scene(rig: Rig) -> None:
        guilds = list(range(TWIN + 1, TWIN + 1 + len(RULES)))
        twins = [guild + TWIN for guild in guilds]
        for guild, twin, rule in zip(guilds, twins, RULES, strict=True):
            for id_ in (guild, twin):
                rig.run(f"INSERT INTO economy.guild_settings SELECT {id_}, * FROM (VALUES {rule})")
        with rig.sql.transaction():
            rig.sql.execute(MEMBERS.replace("%(guilds)s", f"ARRAY{guilds + twins}").encode())
        rig.sql.execute(INSERT_TRANSFERS, {"guilds": guilds + twins})
        ids, alone = ([r["transfer_id"] for r in rig.rows(OF_GUILDS, g)] for g in (guilds, twins))
        await rig.take(*ids, *alone)
        with rig.listening() as received:
            with rig.sql.transaction():
                at_once, one_by_one = rig.rows(CHECK, ids), rig.rows(CHECK_ALONE, alone)
            events = received.events()
        assert at_once == one_by_one
        assert {row["verdict"] for row in at_once} == {"done", "unknown", "rejected"}
        reasons = {row["reason"] for row in at_once}
        assert len(reasons) == 2**3 + 2, "each combination of checks, and the two rejections"
        assert rig.rows(THROTTLES, guilds) == rig.rows(THROTTLES, twins)
        for batched, single in zip(ids, alone, strict=True):
            assert rig.pending(batched)["checks"] == rig.pending(single)["checks"]
        half = len(events) // 2
        assert half == 3 * len(ids)
        index = {str(id_): n for transfers in (ids, alone) for n, id_ in enumerate(transfers)}
        normal = [normalised(event, index) for event in events]
        assert normal[:half] == normal[half:]

    play(scene)


def normalised(event: Row, index: dict[str, int]) -> Row:
    """The event without the ids in which twins differ."""
    ids = {"transfer_id": index[event["transfer_id"]], "guild_id": event["guild_id"] % TWIN}
    return event | ids


def test_passing_transfers_are_approved_in_the_same_update_with_events_after_all_checks(
    play: Play,
) -> None:
    async def scene(rig: Rig) -> None:
        good, late = rig.insert(10), rig.insert(501)
        also = rig.insert(30, initiator=BEN, target=ANNA)
        ids = [also, good, late]
        await rig.take(*ids)
        with rig.listening() as received:
            with rig.sql.transaction():
                rows = rig.rows(APPROVE, ids)
                # The engine records this in the same transaction; otherwise the commit fails.
                rig.run("UPDATE transfers SET state = 'APPROVED' WHERE id = ANY(%s)", [good, also])
                states = ["APPROVED", "APPROVED", "CHECKING"]
                rig.run(RECORD, ids, states, [0] * 3, [0] * 3, [""] * 3)
            events = received.events()
        assert verdicts(rows) == [("done", ""), ("done", ""), ("unknown", "daily_limit")]
        assert [e["event_type"] for e in events[:9]] == ["transfer_check_result"] * 9
        assert [e["transfer_id"] for e in events[9:]] == sorted(map(str, [good, also]))
        assert {e["event_type"] for e in events[9:]} == {"transfer_check_approved"}

    play(scene)


def test_a_process_of_the_previous_version_makes_the_same_events(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It calls the checks by their old name; transfers that pass are approved when recorded."""

    async def scene(rig: Rig) -> None:
        runs = []
        for check in (OLDER_CHECK, postgres.STATEMENTS["check"]):
            monkeypatch.setitem(postgres.STATEMENTS, "check", check)
            with rig.listening() as received:
                id_ = rig.insert(10)
                async with rig.engine():
                    await rig.until(id_, "completed")
                runs.append([e for e in received.events() if e["transfer_id"] == str(id_)])
        older, newer = ([(e["event_type"], e.keys()) for e in events] for events in runs)
        assert older == newer
        assert [kind for kind, _ in newer] == [
            *["transfer_check_result"] * 3,
            "transfer_check_approved",
            "transaction_success",
        ]

    play(scene)


def test_an_approval_that_the_engine_has_not_recorded_does_not_commit(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        id_ = rig.insert(10)
        await rig.take(id_)
        with pytest.raises(psycopg.errors.IntegrityConstraintViolation):
            rig.run(APPROVE, [id_])
        assert rig.pending(id_)["status"] == "checking"
        assert rig.pending(id_)["checks"] == {}

    play(scene)
