"""What the API says of a request that a program has put into the inbox."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.conftest import SCHEMA
from tests.service.rig import ALICE, BOB, Answer, Front, Play, fronted, token
from tidegate.service.request_types import ulid_of

PATH = "/api/v1/internal_transfer"
IN = {"from": "FUNDING", "to": "SPOT", "asset": "USDT", "amount": "10.5"}
ASK = "SELECT request_transfer('internal_transfer', %s, 'USDT', 10.5, %s, %s, %s)"
NO_WAIT = {"Prefer": "wait=0"}


@pytest.fixture
def sql(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"SET search_path TO {SCHEMA}, tidegate")
        connection.execute(
            "INSERT INTO inbox_grants VALUES ('tidegate_inbox', 'internal_transfer')"
        )
        yield connection


def ask(
    sql: psycopg.Connection[Any], cid: str, expires_at: str | None = None, **terms: str
) -> UUID:
    values = (ALICE, Jsonb(terms or {"from": "FUNDING", "to": "SPOT"}), cid, expires_at)
    [(id_,)] = sql.execute(ASK, values).fetchall()
    assert isinstance(id_, UUID)
    return id_


async def show(front: Front, id_: UUID, owner: int = ALICE, path: str = PATH) -> Answer:
    return await front.call("GET", f"{path}/{ulid_of(id_)}", who=token(str(owner), "user"))


async def ended(front: Front, id_: UUID) -> Answer:
    front.gate.engine.hint(["inbox"])
    for _ in range(200):
        shown = await show(front, id_)
        if shown.body["state"] in ("COMMITTED", "FAILED"):
            return shown
        await asyncio.sleep(0.05)
    raise AssertionError(shown)


def test_a_request_that_waits_is_pending_on_every_way_in(
    play: Play, sql: psycopg.Connection[Any]
) -> None:
    async def scene(front: Front) -> None:
        await front.fund("FUNDING", "100")
        front.gate.engine.inbox.stop()
        id_ = ask(sql, "order-1")
        said = await front.transfer(IN | {"cid": "order-1"}, headers=NO_WAIT)
        assert (said.status, said.body["state"]) == (202, "PENDING")
        assert (said.body["req_id"], said.body["duplicate"]) == (ulid_of(id_), True)
        assert said.body["created_at"] > "2020"
        batch = {"transfers": [IN | {"cid": "order-1"}]}
        who = token(str(ALICE), "user")
        both = await front.call("POST", f"{PATH}s", batch, who, headers=NO_WAIT)
        [item] = both.body["results"]
        assert (item["status"], item["transfer"]["req_id"]) == (202, ulid_of(id_))
        other = await front.transfer(IN | {"cid": "order-1", "amount": "11"})
        assert (other.status, other.body["code"]) == (422, "IDEMPOTENCY_MISMATCH")
        shown = await show(front, id_)
        assert (shown.status, shown.body["state"]) == (200, "PENDING")
        assert {name: shown.body[name] for name in ("from", "to", "asset", "amount", "cid")} == {
            **IN,
            "amount": "10.500000",
            "cid": "order-1",
        }
        assert shown.body["code"] is None
        first = await show(front, id_, path="/api/v1/transfer")
        assert (first.status, first.body["state"]) == (200, "pending")
        assert (await show(front, id_, BOB)).status == 404, "it is not a stranger's"

    play(scene)


def test_a_request_that_is_taken_is_shown_as_its_transfer(
    play: Play, sql: psycopg.Connection[Any]
) -> None:
    async def scene(front: Front) -> None:
        await front.fund("FUNDING", "100")
        id_ = ask(sql, "order-1")
        shown = await ended(front, id_)
        assert (shown.body["state"], shown.body["req_id"]) == ("COMMITTED", ulid_of(id_))
        again = await front.transfer(IN | {"cid": "order-1"})
        assert (again.status, again.body["req_id"]) == (200, ulid_of(id_))
        assert (await front.balances())["SPOT", "USDT"] == "10.500000"

    play(scene)


def test_a_refused_request_says_why_and_so_does_its_cid(
    play: Play, sql: psycopg.Connection[Any]
) -> None:
    async def scene(front: Front) -> None:
        await front.fund("FUNDING", "100")
        late = ask(sql, "late", "2020-01-01")
        shown = await ended(front, late)
        assert (shown.status, shown.body["state"]) == (200, "FAILED")
        assert shown.body["code"] == "EXPIRED"
        assert shown.body["message"] == "Transfer failed: nothing was moved (EXPIRED)"
        again = await front.transfer(IN | {"cid": "late"})
        assert (again.status, again.body["code"]) == (422, "EXPIRED")
        # A cause that passes is kept all the same: the same cid is of no use any more.
        sql.execute("UPDATE inbox SET refusal = 'DAILY_LIMIT_EXCEEDED' WHERE id = %s", (late,))
        again = await front.transfer(IN | {"cid": "late"})
        assert (again.status, again.body["code"]) == (422, "KEY_REFUSED")
        assert again.body["retryable"] is False
        strange = ask(sql, "strange", **{"from": "ATTIC", "to": "SPOT"})
        shown = await ended(front, strange)
        assert (shown.body["from"], shown.body["code"]) == ("ATTIC", "INVALID_ACCOUNT_TYPE")
        wordless = ask(sql, "wordless", who="me")
        shown = await ended(front, wordless)
        assert (shown.body["from"], shown.body["code"]) == ("", "INVALID_REQUEST")
        assert (await front.balances())["FUNDING", "USDT"] == "100.000000"

    play(scene)


def test_an_id_that_nobody_has_is_not_found(database: str, tmp_path: Path) -> None:
    async def whole() -> None:
        async with fronted(database, tmp_path) as front:
            assert (await show(front, UUID(int=1))).status == 404

    asyncio.run(whole())
