"""A payment into the pool whose reply from the database is lost: paid once, and never denied."""

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
from tests.service.rig import ALICE, BOB, Answer, Front, fronted, token
from tidegate.service import pool_routes
from tidegate.service.pool_routes import TRIES
from tidegate.service.routing import Call
from tidegate.store.pool_schema import STATEMENTS

PATH = "/api/v1/pool_transfers"
MARK = "lost-reply"
PAY = {"guild_id": 77, "target_id": BOB, "amount": "100", "reason": MARK}
Scene = Callable[[Front, Proxy], Awaitable[None]]
Play = Callable[[Scene], None]


@pytest.fixture
def play(database: str, tmp_path: Path) -> Play:
    async def whole(scene: Scene, directory: Path) -> None:
        async with proxied(database, directory) as (address, proxy):
            proxy.mark = MARK.encode()
            async with fronted(address, tmp_path) as front:
                await scene(front, proxy)

    def played(scene: Scene) -> None:
        with tempfile.TemporaryDirectory(prefix="tg") as name:
            asyncio.run(whole(scene, Path(name)))

    return played


@pytest.fixture
def sql(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"SET search_path TO economy, {SCHEMA}")
        yield connection


def payments(sql: psycopg.Connection[Any]) -> list[str]:
    found = sql.execute("SELECT transfer_id::text FROM pending_transfers").fetchall()
    return [id_ for (id_,) in found]


async def pay(front: Front, **change: str) -> Answer:
    return await front.call("POST", PATH, PAY | change, token(str(ALICE), "user"))


async def look(front: Front, id_: str) -> Answer:
    return await front.call("GET", f"{PATH}/{id_}", who=token(str(ALICE), "user"))


@pytest.mark.parametrize("lost", [1, TRIES - 1, TRIES])
@pytest.mark.parametrize("keyed", [{}, {"cid": "lunch"}])
def test_a_payment_whose_reply_is_lost_is_made_once_and_accepted(
    play: Play, sql: psycopg.Connection[Any], lost: int, keyed: dict[str, str]
) -> None:
    async def scene(front: Front, proxy: Proxy) -> None:
        proxy.swallow = lost
        said = await pay(front, **keyed)
        assert proxy.swallowed == lost
        # 200: of one that the engine has ended before it could be asked for again.
        assert said.status in (200, 202), said
        assert not said.body["duplicate"]
        assert payments(sql) == [said.body["transfer_id"]]
        shown = await look(front, said.body["transfer_id"])
        assert (shown.status, shown.body["amount"]) == (200, "100")

    play(scene)


def test_a_planted_bug_that_names_each_try_anew_pays_twice(
    play: Play, sql: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof that the test above can fail: only the id makes two tries one payment."""
    create = pool_routes._create

    async def anew(call: Call, values: Mapping[str, Any]) -> tuple[UUID, bool]:
        [(id_,)] = await call.service.gate.store.run(STATEMENTS["new_id"], {})
        return await create(call, {**values, "transfer_id": id_})

    monkeypatch.setattr(pool_routes, "_create", anew)

    async def scene(front: Front, proxy: Proxy) -> None:
        proxy.swallow = 1
        assert (await pay(front)).status == 202
        assert len(payments(sql)) == 2

    play(scene)


def test_a_payment_of_which_nothing_is_known_is_not_denied(
    play: Play, sql: psycopg.Connection[Any]
) -> None:
    async def scene(front: Front, proxy: Proxy) -> None:
        proxy.drop = TRIES
        said = await pay(front)
        assert (said.status, said.body["status"]) == (202, "pending")
        assert said.headers["location"] == f"{PATH}/{said.body['transfer_id']}"
        assert payments(sql) == []
        assert (await look(front, said.body["transfer_id"])).status == 404

    play(scene)


def test_an_error_of_a_later_try_says_nothing_of_an_earlier_one(
    play: Play, sql: psycopg.Connection[Any]
) -> None:
    async def scene(front: Front, proxy: Proxy) -> None:
        def break_it() -> None:
            sql.execute("ALTER TABLE pending_transfers ADD CONSTRAINT broken CHECK (amount < 0)")

        proxy.drop, proxy.meanwhile = 1, break_it
        said = await pay(front)
        assert said.status == 202, said
        # Of one that was never silent, the error is the answer.
        said = await pay(front, reason="dinner")
        assert said.status == 500, said
        assert payments(sql) == []

    play(scene)
