"""Many transfers in one statement: from SQL, each is what it would have been by itself."""

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
# The terms of one that was asked for by itself, as the store computes their fingerprint.
PRINTS = """
SELECT economy._request_print(%(payer)s, %(payee)s, %(amount)s, %(words)s) AS ours,
       request_fingerprint('pool_transfer', 6, %(amount)s,
                           jsonb_build_object('initiator', %(payer)s::text, 'target',
                                              %(payee)s::text, 'metadata', %(words)s::jsonb::text))
       AS theirs
"""
REQUESTS = "SELECT id, amount, cid, space, terms FROM inbox ORDER BY amount"


def many(rig: Rig, amounts: list[int], cids: list[str | None]) -> list[UUID | None]:
    alike = [[member] * len(amounts) for member in (GUILD, ANNA, BEN)]
    words, never = [Jsonb({})] * len(amounts), [None] * len(amounts)
    return [row["id"] for row in rig.rows(CREATE_MANY, *alike, amounts, words, never, cids)]


def together(rig: Rig, id_: UUID, *statements: str) -> None:
    with rig.sql.transaction():
        for statement in statements:
            rig.run(statement, id_)


@pytest.mark.parametrize(
    "words", [{}, {"a": "\N{SNOWMAN}", "b": {"c": [1, "\\ ' \""]}}, {"reason": "x" * 3000}]
)
@pytest.mark.parametrize("number", [1, 2**63 - 1])
def test_the_fingerprint_is_the_stores_own(play: Play, words: dict[str, Any], number: int) -> None:
    async def scene(rig: Rig) -> None:
        values = {"payer": number, "payee": 7, "amount": number, "words": Jsonb(words)}
        # As in the functions that it is inlined into.
        rig.run(f"SET search_path TO economy, {SCHEMA}, tidegate")
        [row] = rig.sql.execute(PRINTS, values).fetchall()
        assert row["ours"] == row["theirs"]

    play(scene)


def test_an_insert_of_many_rows_asks_for_each_of_them(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        with psycopg.connect(rig.database, autocommit=True) as ears:
            ears.execute("LISTEN tidegate_due")
            ids = [
                r["transfer_id"] for r in rig.rows(INSERT, GUILD, ANNA, BEN, [1, 2], ["a", None])
            ]
            assert [n.payload for n in ears.notifies(timeout=0.3)] == ["inbox"]
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
def test_of_an_insert_with_a_known_cid_nothing_remains(
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


def test_when_it_was_created_is_for_the_database_to_say(play: Play) -> None:
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


def test_many_at_once_have_their_ids_in_order(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        rig.run("SET ROLE tidegate_economy")
        ids = many(rig, [5, 6, 7], [None, "a", None])
        rig.run("RESET ROLE")
        assert [rig.pending(id_)["amount"] for id_ in ids if id_] == [5, 6, 7]
        async with rig.engine():
            for id_ in ids:
                assert id_ is not None
                await rig.until(id_, "completed")

    play(scene)


def test_of_many_at_once_those_whose_cid_is_known_are_left_out(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        known = rig.insert(5, cid="known")
        # A key of an older version, of which only the function for one can say what it is.
        rig.run(
            "INSERT INTO cids (owner, cid, fingerprint, transfer_id) VALUES (%s, %s, %s, %s)",
            *(GUILD, f"{ANNA}:older", b"print", UUID(int=7)),
        )
        made = many(rig, [5, 6, 6, 7, 8], ["known", "twice", "twice", "older", "new"])
        assert [id_ is not None for id_ in made] == [False, True, False, False, True]
        assert len(rig.rows("SELECT FROM economy.pending_transfers")) == 3
        assert rig.rows(CREATE, GUILD, ANNA, BEN, 5, "{}", "known") == [{"id": known}]
        assert rig.rows(CREATE, GUILD, ANNA, BEN, 6, "{}", "twice") == [{"id": made[1]}]

    play(scene)


def test_many_at_once_are_all_refused_if_one_of_them_is(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        with pytest.raises(psycopg.errors.CheckViolation):
            many(rig, [5, 0], [None, None])
        with pytest.raises(psycopg.errors.CheckViolation):
            many(rig, [5, 5], [None, "\N{SNOWMAN}"])
        with pytest.raises(psycopg.errors.NotNullViolation):
            many(rig, [5, 5], ["a", "b", "c"])
        assert rig.rows("SELECT FROM economy.pending_transfers") == []
        assert rig.rows("SELECT FROM inbox") == []

    play(scene)


def test_a_key_that_somebody_holds_ends_the_wait_of_a_batch(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        with psycopg.connect(rig.database) as holder:
            holder.execute(INSERT, (GUILD, ANNA, BEN, [5], ["held"]))
            with pytest.raises(psycopg.errors.LockNotAvailable):
                many(rig, [5, 6], ["held", None])
            assert rig.rows("SHOW lock_timeout") == [{"lock_timeout": "0"}], "as it was before"
            holder.rollback()
        assert None not in many(rig, [5, 6], ["held", None])

    play(scene)


def test_what_an_update_makes_of_a_row_must_still_be_the_engines_record(play: Play) -> None:
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
        # There and back again in one transaction: both records agree when it commits.
        together(rig, id_, update.format("amount = 11"), update.format("amount = 10"))
        for first, second in (("amount = 10", "amount = 11"), ("amount = 11", "metadata = '{}'")):
            with pytest.raises(psycopg.errors.IntegrityConstraintViolation):
                together(rig, id_, update.format(first), update.format(second))
        # Nor may the engine's record be another's: what was asked for is what is paid.
        other = "UPDATE transfers SET amount = 11 WHERE id = %s"
        with pytest.raises(psycopg.errors.IntegrityConstraintViolation):
            together(rig, id_, other, update.format("status = status"))

    play(scene)
