"""If the database's reply to a pool payment is lost, the payment is made once and never refused."""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from tests.conftest import SCHEMA
from tests.engine.proxy import Proxy, proxied
from tests.service.rig import ALICE, BOB, Answer, ApiClient, running_service, token
from tidegate.service import pool_routes
from tidegate.service.pool_routes import TRIES
from tidegate.service.routing import Call
from tidegate.store.pool_schema import STATEMENTS

PATH = "/api/v1/pool_transfers"
MARK = "lost-reply"
PAY = {"guild_id": 77, "target_id": BOB, "amount": "100", "reason": MARK}
Scenario = Callable[[ApiClient, Proxy], Awaitable[None]]
Run = Callable[[Scenario], None]


@pytest.fixture
def run(database: str, tmp_path: Path) -> Run:
    async def main(scenario: Scenario, directory: Path) -> None:
        async with proxied(database, directory) as (address, proxy):
            proxy.mark = MARK.encode()
            async with running_service(address, tmp_path) as api:
                await scenario(api, proxy)

    def played(scenario: Scenario) -> None:
        with tempfile.TemporaryDirectory(prefix="tg") as name:
            asyncio.run(main(scenario, Path(name)))

    return played


@pytest.fixture
def sql(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"SET search_path TO economy, {SCHEMA}")
        yield connection


def payments(sql: psycopg.Connection[Any]) -> list[str]:
    found = sql.execute("SELECT transfer_id::text FROM pending_transfers").fetchall()
    return [id_ for (id_,) in found]


async def pay(api: ApiClient, **change: str) -> Answer:
    return await api.call("POST", PATH, PAY | change, token(str(ALICE), "user"))


async def show(api: ApiClient, id_: str) -> Answer:
    return await api.call("GET", f"{PATH}/{id_}", bearer=token(str(ALICE), "user"))


@pytest.mark.parametrize("lost", [1, TRIES - 1, TRIES])
@pytest.mark.parametrize("keyed", [{}, {"cid": "lunch"}])
def test_a_payment_whose_reply_is_lost_is_made_once_and_accepted(
    run: Run, sql: psycopg.Connection[Any], lost: int, keyed: dict[str, str]
) -> None:
    async def scenario(api: ApiClient, proxy: Proxy) -> None:
        proxy.swallow = lost
        reply = await pay(api, **keyed)
        assert proxy.swallowed == lost
        # 200 if the engine ended the payment before the retry.
        assert reply.status in (200, 202), reply
        assert not reply.body["duplicate"]
        assert payments(sql) == [reply.body["transfer_id"]]
        shown = await show(api, reply.body["transfer_id"])
        assert (shown.status, shown.body["amount"]) == (200, "100")

    run(scenario)


def test_a_planted_bug_that_gives_each_try_a_new_id_pays_twice(
    run: Run, sql: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This shows that the test above can fail: only the id makes two tries one payment."""
    create = pool_routes._create

    async def with_new_id(call: Call, values: Mapping[str, Any]) -> tuple[UUID, bool]:
        [(id_,)] = await call.service.gate.store.run(STATEMENTS["new_id"], {})
        return await create(call, {**values, "transfer_id": id_})

    monkeypatch.setattr(pool_routes, "_create", with_new_id)

    async def scenario(api: ApiClient, proxy: Proxy) -> None:
        proxy.swallow = 1
        assert (await pay(api)).status == 202
        assert len(payments(sql)) == 2

    run(scenario)


def test_a_payment_with_an_unknown_result_is_not_refused(
    run: Run, sql: psycopg.Connection[Any]
) -> None:
    async def scenario(api: ApiClient, proxy: Proxy) -> None:
        proxy.drop = TRIES
        reply = await pay(api)
        assert (reply.status, reply.body["status"]) == (202, "pending")
        assert reply.headers["location"] == f"{PATH}/{reply.body['transfer_id']}"
        assert payments(sql) == []
        assert (await show(api, reply.body["transfer_id"])).status == 404

    run(scenario)


def test_an_error_of_a_later_try_does_not_decide_an_earlier_one(
    run: Run, sql: psycopg.Connection[Any]
) -> None:
    async def scenario(api: ApiClient, proxy: Proxy) -> None:
        def break_it() -> None:
            sql.execute("ALTER TABLE pending_transfers ADD CONSTRAINT broken CHECK (amount < 0)")

        proxy.drop, proxy.meanwhile = 1, break_it
        reply = await pay(api)
        assert reply.status == 202, reply
        # Without a lost reply, the error is the result.
        reply = await pay(api, reason="dinner")
        assert reply.status == 500, reply
        assert payments(sql) == []

    run(scenario)
