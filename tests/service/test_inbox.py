"""How the API shows a request that a program has put into the inbox."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.conftest import SCHEMA
from tests.service.rig import ALICE, BOB, Answer, ApiClient, Run, running_service, token
from tidegate.service.formats import ulid_of

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


async def show(api: ApiClient, id_: UUID, owner: int = ALICE, path: str = PATH) -> Answer:
    return await api.call("GET", f"{path}/{ulid_of(id_)}", bearer=token(str(owner), "user"))


async def ended(api: ApiClient, id_: UUID) -> Answer:
    api.gate.engine.hint(["inbox"])
    for _ in range(200):
        shown = await show(api, id_)
        if shown.body["state"] in ("COMMITTED", "FAILED"):
            return shown
        await asyncio.sleep(0.05)
    raise AssertionError(shown)


def test_a_waiting_request_is_pending_on_every_route(
    run: Run, sql: psycopg.Connection[Any]
) -> None:
    async def scenario(api: ApiClient) -> None:
        await api.fund("FUNDING", "100")
        api.gate.engine.inbox.stop()
        id_ = ask(sql, "order-1")
        reply = await api.transfer(IN | {"cid": "order-1"}, headers=NO_WAIT)
        assert (reply.status, reply.body["state"]) == (202, "PENDING")
        assert (reply.body["req_id"], reply.body["duplicate"]) == (ulid_of(id_), True)
        assert reply.body["created_at"] > "2020"
        batch = {"transfers": [IN | {"cid": "order-1"}]}
        bearer = token(str(ALICE), "user")
        both = await api.call("POST", f"{PATH}s", batch, bearer, headers=NO_WAIT)
        [item] = both.body["results"]
        assert (item["status"], item["transfer"]["req_id"]) == (202, ulid_of(id_))
        other = await api.transfer(IN | {"cid": "order-1", "amount": "11"})
        assert (other.status, other.body["code"]) == (422, "IDEMPOTENCY_MISMATCH")
        shown = await show(api, id_)
        assert (shown.status, shown.body["state"]) == (200, "PENDING")
        assert {name: shown.body[name] for name in ("from", "to", "asset", "amount", "cid")} == {
            **IN,
            "amount": "10.500000",
            "cid": "order-1",
        }
        assert shown.body["code"] is None
        first = await show(api, id_, path="/api/v1/transfer")
        assert (first.status, first.body["state"]) == (200, "pending")
        assert (await show(api, id_, BOB)).status == 404, "other users cannot see it"

    run(scenario)


def test_a_processed_request_is_shown_as_its_transfer(
    run: Run, sql: psycopg.Connection[Any]
) -> None:
    async def scenario(api: ApiClient) -> None:
        await api.fund("FUNDING", "100")
        id_ = ask(sql, "order-1")
        shown = await ended(api, id_)
        assert (shown.body["state"], shown.body["req_id"]) == ("COMMITTED", ulid_of(id_))
        again = await api.transfer(IN | {"cid": "order-1"})
        assert (again.status, again.body["req_id"]) == (200, ulid_of(id_))
        assert (await api.balances())["SPOT", "USDT"] == "10.500000"

    run(scenario)


def test_a_refused_request_shows_why_and_its_cid_stays_refused(
    run: Run, sql: psycopg.Connection[Any]
) -> None:
    async def scenario(api: ApiClient) -> None:
        await api.fund("FUNDING", "100")
        expired = ask(sql, "late", "2020-01-01")
        shown = await ended(api, expired)
        assert (shown.status, shown.body["state"]) == (200, "FAILED")
        assert shown.body["code"] == "EXPIRED"
        assert shown.body["message"] == "Transfer failed: nothing was moved (EXPIRED)"
        again = await api.transfer(IN | {"cid": "late"})
        assert (again.status, again.body["code"]) == (422, "EXPIRED")
        # A temporary reason is stored, too: the same cid can never be used again.
        sql.execute("UPDATE inbox SET refusal = 'DAILY_LIMIT_EXCEEDED' WHERE id = %s", (expired,))
        again = await api.transfer(IN | {"cid": "late"})
        assert (again.status, again.body["code"]) == (422, "KEY_REFUSED")
        assert again.body["retryable"] is False
        strange = ask(sql, "strange", **{"from": "ATTIC", "to": "SPOT"})
        shown = await ended(api, strange)
        assert (shown.body["from"], shown.body["code"]) == ("ATTIC", "INVALID_ACCOUNT_TYPE")
        without_terms = ask(sql, "wordless", bearer="me")
        shown = await ended(api, without_terms)
        assert (shown.body["from"], shown.body["code"]) == ("", "INVALID_REQUEST")
        assert (await api.balances())["FUNDING", "USDT"] == "100.000000"

    run(scenario)


def test_an_unknown_id_is_not_found(database: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with running_service(database, tmp_path) as api:
            assert (await show(api, UUID(int=1))).status == 404

    asyncio.run(main())
