"""The SQL contract of the pool: permissions, refused rows and the store of the guilds."""

import asyncio
from uuid import UUID

import psycopg
import pytest

from tests.conftest import SCHEMA
from tests.economy.rig import ANNA, BEN, CARA, GUILD, Play, Rig
from tidegate.engine.audit import Audit
from tidegate.flows import FLOWS
from tidegate.store.migrate import migrate

CREATE = "SELECT economy.fn_create_pending_transfer(%s, %s, %s, %s) AS id"


def test_the_role_may_use_the_pool_and_nothing_else(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        rig.run("SET ROLE tidegate_economy")
        id_ = rig.insert(100)
        [created] = rig.rows(CREATE, GUILD, ANNA, BEN, 5)
        assert rig.rows("SELECT * FROM economy.fn_get_pending_transfer(%s)", id_)
        rows = rig.rows("SELECT transfer_id FROM economy.fn_list_pending_transfers(%s)", GUILD)
        assert [row["transfer_id"] for row in rows] == [created["id"], id_]
        assert rig.rows("SELECT economy.fn_check_transfer_balance(%s) AS n", id_) == [{"n": 1}]
        rig.run("SELECT economy.fn_update_pending_transfer(%s, %s)", id_, '{"a": 1}')
        for statement in (
            "UPDATE economy.pending_transfers SET status = 'approved'",
            "DELETE FROM economy.pending_transfers",
            "UPDATE economy.throttles SET sent = 0",
            f"SELECT economy._check_and_approve_transfer('{id_}')",
            "SELECT economy._record_transfers('{}', '{}', '{}', '{}', '{}')",
            f"SELECT economy._pay('{id_}', 1, 1, 2, 5)",
            "SELECT economy._throttle(1, 1, 1)",
            "SELECT economy.fn_issue_currency(1, 1, 1)",
            f"SELECT * FROM {SCHEMA}.transfers",
            f"UPDATE {SCHEMA}.ledger_accounts SET available = 10",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                rig.run(statement)
        rig.run("RESET ROLE")
        async with rig.engine():
            await rig.until(id_, "completed")

    play(scene)


def test_ids_created_in_sql_are_above_the_floor(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        floor = UUID("ffff0000-0000-0000-0000-00000000ffff")
        rig.run(f"UPDATE {SCHEMA}.id_floor SET floor = %s", floor)
        rig.run("SET ROLE tidegate_economy")
        [created] = rig.rows(CREATE, GUILD, ANNA, BEN, 5)
        rig.run("RESET ROLE")
        [issued] = rig.rows("SELECT economy.fn_issue_currency(%s, %s, 5, 'x') AS id", GUILD, ANNA)
        assert min(rig.insert(100), created["id"], issued["id"]) > floor

    play(scene)


@pytest.mark.parametrize(
    "fields",
    [
        {"amount": 0},
        {"amount": -1},
        {"initiator_id": 0},
        {"target_id": ANNA},
        {"guild_id": -5},
        {"status": "completed"},
        {"status": "approved"},
        {"checks": '{"balance": 1}'},
        {"retry_count": 3},
        {"round": 2},
        {"metadata": "[]"},
        {"cid": ""},
        {"transfer_id": UUID(int=7)},
        {"transfer_id": UUID("f47ac10b-58cc-4372-a567-0e02b2c3d479")},
        {"cid": "\u96ea"},
    ],
    ids=str,
)
def test_a_row_that_is_not_a_valid_new_transfer_is_refused(
    play: Play, fields: dict[str, object]
) -> None:
    async def scene(rig: Rig) -> None:
        row = {"guild_id": GUILD, "initiator_id": ANNA, "target_id": BEN, "amount": 10} | fields
        names, values = ", ".join(row), ", ".join(["%s"] * len(row))
        with pytest.raises(psycopg.errors.CheckViolation):
            rig.run(
                f"INSERT INTO economy.pending_transfers ({names}) VALUES ({values})", *row.values()
            )
        assert rig.rows("SELECT FROM transfers WHERE flow = 'pool_transfer'") == []

    play(scene)


def test_points_are_issued_and_paid_by_sql_alone(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        def issue(*values: object) -> UUID:
            statement = "SELECT economy.fn_issue_currency(%s, %s, %s, %s)"
            with psycopg.connect(rig.database, autocommit=True) as connection:
                [(id_,)] = connection.execute(statement, values).fetchall()
            assert isinstance(id_, UUID)
            return id_

        calls = [asyncio.to_thread(issue, GUILD, CARA, 50, "welcome") for _ in range(4)]
        assert len({*await asyncio.gather(*calls)}) == 1, "once per cid"
        assert issue(GUILD, CARA, 7, None) != issue(GUILD, CARA, 7, None)
        with pytest.raises(psycopg.Error, match="IDEMPOTENCY_MISMATCH"):
            issue(GUILD, CARA, 51, "welcome")
        async with rig.engine():
            async with asyncio.timeout(10):
                while rig.balance(CARA) < 64:  # noqa: ASYNC110  No event.
                    await asyncio.sleep(0.02)
            await rig.until(rig.insert(60, initiator=CARA), "completed")
        assert (rig.balance(CARA), rig.balance(BEN)) == (4, 1_060)
        outside = "SELECT available FROM ledger_accounts WHERE book = 'OUTSIDE'"
        assert [row["available"] for row in rig.rows(outside)] == [-2_064]
        audit = Audit(rig.store, None, FLOWS, rig.alerts.append)
        assert (await audit.run(full=True)).violations == []
        await audit.close()

    play(scene)


@pytest.mark.parametrize(
    "values",
    [(0, 1, 5, "a"), (1, -1, 5, "a"), (1, 1, 0, "a"), (1, 1, None, None), (1, 1, 5, "")],
    ids=str,
)
def test_an_invalid_issue_is_refused(play: Play, values: tuple[object, ...]) -> None:
    async def scene(rig: Rig) -> None:
        with pytest.raises(psycopg.errors.CheckViolation):
            rig.run("SELECT economy.fn_issue_currency(%s, %s, %s, %s)", *values)

    play(scene)


def test_an_insert_that_conflicts_changes_neither_record(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        id_ = rig.insert(10)
        rig.run(
            "INSERT INTO economy.pending_transfers"
            " (transfer_id, guild_id, initiator_id, target_id, amount) VALUES (%s, 10, 1, 2, 99)"
            " ON CONFLICT DO NOTHING",
            id_,
        )
        [request] = rig.rows("SELECT amount FROM inbox")
        assert request["amount"] == 10

    play(scene)


def test_a_transfer_of_another_flow_cannot_be_inserted_into_the_pool(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        [other] = rig.rows("SELECT id FROM transfers WHERE flow = 'deposit' LIMIT 1")
        with pytest.raises(psycopg.errors.IntegrityConstraintViolation, match="would differ"):
            rig.insert(10, transfer_id=other["id"])

    play(scene)


def test_an_insert_that_is_rolled_back_leaves_no_rows(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        with rig.sql.transaction(force_rollback=True):
            rig.insert(10)
        assert rig.rows("SELECT FROM inbox") == []
        assert rig.rows("SELECT FROM economy.pending_transfers") == []

    play(scene)


def test_a_second_store_does_not_take_the_guilds_over(database: str) -> None:
    assert "economy: 0001_begin" not in migrate(database, "store_two", FLOWS.values(), economy=True)
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT * FROM economy.home").fetchall() == [(SCHEMA,)]


def test_the_specified_indexes_and_one_for_the_transfers_of_a_member_exist(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        rows = rig.rows("SELECT indexdef FROM pg_indexes WHERE tablename = 'pending_transfers'")
        columns = {row["indexdef"].partition("USING btree ")[2] for row in rows}
        assert columns == {
            "(transfer_id)",
            "(guild_id, status)",
            "(expires_at)",
            "(status, updated_at)",
            "(initiator_id, created_at)",
        }

    play(scene)


def test_the_columns_are_those_of_the_specification(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        rows = rig.rows(
            "SELECT column_name AS name, data_type AS kind FROM information_schema.columns"
            " WHERE table_schema = 'economy' AND table_name = 'pending_transfers'"
            " ORDER BY ordinal_position"
        )
        kinds = {row["name"]: row["kind"] for row in rows}
        assert list(kinds)[:12] == [
            "transfer_id",
            "guild_id",
            "initiator_id",
            "target_id",
            "amount",
            "status",
            "checks",
            "retry_count",
            "expires_at",
            "metadata",
            "created_at",
            "updated_at",
        ]
        assert kinds["status"] == "character varying"
        assert {kinds[n] for n in ("guild_id", "initiator_id", "target_id", "amount")} == {"bigint"}
        assert (kinds["checks"], kinds["metadata"]) == ("jsonb", "jsonb")

    play(scene)
