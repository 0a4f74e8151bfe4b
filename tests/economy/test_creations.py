"""Many transfers in one SQL statement: each is the same as if it were created alone."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.conftest import SCHEMA
from tests.economy.rig import ANNA, BEN, CARA, GUILD, Play, Rig

CREATE = "SELECT economy.fn_create_pending_transfer(%s, %s, %s, %s, %s, NULL, %s) AS id"
CREATE_MANY = """
SELECT economy.fn_create_pending_transfers(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[],
                                           %s::jsonb[], %s::timestamptz[], %s::text[]) AS id
"""
INSERT = """
INSERT INTO economy.pending_transfers (guild_id, initiator_id, target_id, amount, cid)
SELECT %s, %s, %s, n, c FROM unnest(%s::bigint[], %s::text[]) AS u (n, c)
RETURNING transfer_id
"""
# The fingerprint of a single request, as the store computes it.
FINGERPRINTS = """
SELECT economy._request_print(%(payer)s, %(payee)s, %(amount)s, %(metadata)s) AS ours,
       request_fingerprint('pool_transfer', 6, %(amount)s,
                           jsonb_build_object('initiator', %(payer)s::text,
                                              'target', %(payee)s::text,
                                              'metadata', %(metadata)s::jsonb::text))
       AS theirs
"""
REQUESTS = "SELECT id, amount, cid, space, terms FROM inbox ORDER BY amount"


def create_many(rig: Rig, amounts: list[int], cids: list[str | None]) -> list[UUID | None]:
    members = [[member] * len(amounts) for member in (GUILD, ANNA, BEN)]
    metadata, expiry = [Jsonb({})] * len(amounts), [None] * len(amounts)
    return [row["id"] for row in rig.rows(CREATE_MANY, *members, amounts, metadata, expiry, cids)]


def in_one_transaction(rig: Rig, id_: UUID, *statements: str) -> None:
    with rig.sql.transaction():
        for statement in statements:
            rig.run(statement, id_)


@pytest.mark.parametrize(
    "metadata", [{}, {"a": "\N{SNOWMAN}", "b": {"c": [1, "\\ ' \""]}}, {"reason": "x" * 3000}]
)
@pytest.mark.parametrize("number", [1, 2**63 - 1])
def test_the_fingerprint_is_the_same_as_the_stores(
    play: Play, metadata: dict[str, Any], number: int
) -> None:
    async def scene(rig: Rig) -> None:
        values = {"payer": number, "payee": 7, "amount": number, "metadata": Jsonb(metadata)}
        # The search path of the functions that it is inlined into.
        rig.run(f"SET search_path TO economy, {SCHEMA}, tidegate")
        [row] = rig.sql.execute(FINGERPRINTS, values).fetchall()
        assert row["ours"] == row["theirs"]

    play(scene)


def test_an_insert_of_several_rows_requests_each_of_them(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        with psycopg.connect(rig.database, autocommit=True) as listener:
            listener.execute("LISTEN tidegate_due")
            ids = [
                r["transfer_id"] for r in rig.rows(INSERT, GUILD, ANNA, BEN, [1, 2], ["a", None])
            ]
            assert [n.payload for n in listener.notifies(timeout=0.3)] == ["inbox"]
        terms = {"initiator": str(ANNA), "target": str(BEN), "metadata": "{}"}
        assert rig.rows(REQUESTS) == [
            {"id": ids[0], "amount": 1, "cid": f"{ANNA}:a", "space": "guild", "terms": terms},
            {"id": ids[1], "amount": 2, "cid": None, "space": "guild", "terms": terms},
        ]
        assert rig.rows(CREATE, GUILD, ANNA, BEN, 1, "{}", "a") == [{"id": ids[0]}]
        async with rig.engine():
            for id_ in ids:
                await rig.until(id_, "completed")

    play(scene)


@pytest.mark.parametrize(
    ("amounts", "cids", "error"),
    [
        ([1, 1], ["a", "a"], "23505"),
        ([1, 2], ["a", "a"], "TG422"),
        ([3, 4], ["new", "known"], "TG422"),
        ([3, 9], ["new", "known"], "23505"),
    ],
)
def test_an_insert_with_a_known_cid_leaves_no_rows(
    play: Play, amounts: list[int], cids: list[str], error: str
) -> None:
    async def scene(rig: Rig) -> None:
        rig.insert(9, cid="known")
        with pytest.raises(psycopg.Error) as caught:
            rig.run(INSERT, GUILD, ANNA, BEN, amounts, cids)
        assert caught.value.sqlstate == error
        for table in ("economy.pending_transfers", "inbox"):
            assert [row["amount"] for row in rig.rows(f"SELECT amount FROM {table}")] == [9]

    play(scene)


def test_the_creation_time_and_other_state_are_set_by_the_database(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        old = datetime(2001, 1, 1, tzinfo=UTC)
        row = rig.pending(rig.insert(10, created_at=old, updated_at=old))
        assert row["created_at"] == row["updated_at"] > datetime(2020, 1, 1, tzinfo=UTC)
        for odd in (
            {"status": "approved"},
            {"checks": '{"balance": 1}'},
            {"retry_count": 1},
            {"round": 2},
            {"transfer_id": UUID(int=1)},
        ):
            with pytest.raises(psycopg.errors.CheckViolation):
                rig.insert(10, **odd)

    play(scene)


def test_a_batch_returns_the_ids_in_order(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        rig.run("SET ROLE tidegate_economy")
        ids = create_many(rig, [5, 6, 7], [None, "a", None])
        rig.run("RESET ROLE")
        assert [rig.pending(id_)["amount"] for id_ in ids if id_] == [5, 6, 7]
        async with rig.engine():
            for id_ in ids:
                assert id_ is not None
                await rig.until(id_, "completed")

    play(scene)


def test_a_batch_leaves_out_requests_with_a_known_cid(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        known = rig.insert(5, cid="known")
        # A key of an older version: only the function for single requests can resolve it.
        rig.run(
            "INSERT INTO cids (owner, cid, fingerprint, transfer_id) VALUES (%s, %s, %s, %s)",
            *(GUILD, f"{ANNA}:older", b"print", UUID(int=7)),
        )
        ids = create_many(rig, [5, 6, 6, 7, 8], ["known", "twice", "twice", "older", "new"])
        assert [id_ is not None for id_ in ids] == [False, True, False, False, True]
        assert len(rig.rows("SELECT FROM economy.pending_transfers")) == 3
        assert rig.rows(CREATE, GUILD, ANNA, BEN, 5, "{}", "known") == [{"id": known}]
        assert rig.rows(CREATE, GUILD, ANNA, BEN, 6, "{}", "twice") == [{"id": ids[1]}]

    play(scene)


def test_a_batch_is_refused_if_one_of_its_requests_is(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        with pytest.raises(psycopg.errors.CheckViolation):
            create_many(rig, [5, 0], [None, None])
        with pytest.raises(psycopg.errors.CheckViolation):
            create_many(rig, [5, 5], [None, "\N{SNOWMAN}"])
        with pytest.raises(psycopg.errors.NotNullViolation):
            create_many(rig, [5, 5], ["a", "b", "c"])
        assert rig.rows("SELECT FROM economy.pending_transfers") == []
        assert rig.rows("SELECT FROM inbox") == []

    play(scene)


def test_a_batch_fails_soon_if_another_session_holds_one_of_its_keys(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        with psycopg.connect(rig.database) as holder:
            holder.execute(INSERT, (GUILD, ANNA, BEN, [5], ["held"]))
            with pytest.raises(psycopg.errors.LockNotAvailable):
                create_many(rig, [5, 6], ["held", None])
            assert rig.rows("SHOW lock_timeout") == [{"lock_timeout": "0"}], "as it was before"
            holder.rollback()
        assert None not in create_many(rig, [5, 6], ["held", None])

    play(scene)


def test_an_update_must_not_make_a_row_differ_from_the_engines_record(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        id_ = rig.insert(10)
        await rig.take(id_)
        update = "UPDATE economy.pending_transfers SET {} WHERE transfer_id = %s"
        for change in (
            "status = 'approved'",
            "retry_count = 1",
            "amount = 11",
            f"initiator_id = {CARA}",
            f"target_id = {CARA}",
            "guild_id = guild_id + 1",
            "expires_at = expires_at + interval '1 second'",
        ):
            with pytest.raises(psycopg.errors.IntegrityConstraintViolation):
                rig.run(update.format(change), id_)
        with pytest.raises(psycopg.errors.IntegrityConstraintViolation):
            rig.run("DELETE FROM economy.pending_transfers WHERE transfer_id = %s", id_)
        # A change that is undone in the same transaction: both records agree at the commit.
        in_one_transaction(rig, id_, update.format("amount = 11"), update.format("amount = 10"))
        for first, second in (("amount = 10", "amount = 11"), ("amount = 11", "metadata = '{}'")):
            with pytest.raises(psycopg.errors.IntegrityConstraintViolation):
                in_one_transaction(rig, id_, update.format(first), update.format(second))
        # The engine's record must not change, either: the requested amount is the one paid.
        other = "UPDATE transfers SET amount = 11 WHERE id = %s"
        with pytest.raises(psycopg.errors.IntegrityConstraintViolation):
            in_one_transaction(rig, id_, other, update.format("status = status"))

    play(scene)
