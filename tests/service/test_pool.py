"""The pool over HTTP: the token's user pays, both parties see a payment, the payer lists it."""

import asyncio
from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID

import psycopg
import pytest

from tests.service.rig import ALICE, BOB, Answer, ApiClient, Run, running_service, token
from tidegate.core.kind import Party
from tidegate.core.request import Request
from tidegate.service.rate_limits import OwnerRateLimit
from tidegate.systems.guild import POINT, book_of

GUILD, PATH = 77, "/api/v1/pool_transfers"
PAY = {"guild_id": GUILD, "target_id": BOB, "amount": "100"}


async def endow(api: ApiClient, amount: int, member: int = ALICE) -> None:
    parties = {
        "source": Party("ledger", "OUTSIDE", GUILD),
        "target": Party("ledger", book_of(member), GUILD),
        "suspense": Party("ledger", "SUSPENSE", GUILD),
    }
    await api.gate.engine.transfer(Request(GUILD, "deposit", parties, POINT, amount))


async def ask(
    api: ApiClient, method: str, path: str, body: object = None, owner: int = ALICE
) -> Answer:
    return await api.call(method, path, body, token(str(owner), "user"))


async def ended(api: ApiClient, id_: str) -> Answer:
    for _ in range(200):
        reply = await ask(api, "GET", f"{PATH}/{id_}")
        if reply.body["status"] in ("completed", "rejected"):
            return reply
        await asyncio.sleep(0.05)
    raise AssertionError(reply)


def test_a_member_pays_and_both_can_see_it(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        await endow(api, 300)
        created = await ask(api, "POST", PATH, PAY | {"reason": "lunch"})
        assert created.status == 202
        assert (created.body["initiator_id"], created.body["amount"]) == (ALICE, "100")
        assert created.headers["location"] == f"{PATH}/{created.body['transfer_id']}"
        reply = await ended(api, created.body["transfer_id"])
        assert reply.body["status"] == "completed"
        assert reply.body["checks"] == {"balance": 1, "cooldown": 1, "daily_limit": 1}
        assert reply.body["metadata"] == {"reason": "lunch"}
        id_ = created.body["transfer_id"]
        assert (await ask(api, "GET", f"{PATH}/{id_}", owner=BOB)).status == 200
        assert (await ask(api, "GET", f"{PATH}/{id_}", owner=4_999)).status == 404

    run(scenario)


def test_a_cid_names_one_transfer_of_one_member(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        body = PAY | {"cid": "once"}
        first, again = [await ask(api, "POST", PATH, body) for _ in range(2)]
        assert first.body["transfer_id"] == again.body["transfer_id"]
        assert [first.body["duplicate"], again.body["duplicate"]] == [False, True]
        other = await ask(api, "POST", PATH, body | {"amount": "101"})
        assert (other.status, other.body["code"]) == (422, "IDEMPOTENCY_MISMATCH")
        bobs = await ask(api, "POST", PATH, body | {"target_id": ALICE}, owner=BOB)
        assert bobs.body["transfer_id"] != first.body["transfer_id"]

    run(scenario)


def test_a_replay_is_answered_even_over_the_rate_limit(database: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with running_service(database, tmp_path, OwnerRateLimit(1, lambda: 0.0)) as api:
            body = PAY | {"cid": "once"}
            first = await ask(api, "POST", PATH, body)
            assert first.status == 202
            for late in (PAY, PAY | {"cid": "another"}):
                reply = await ask(api, "POST", PATH, late)
                assert (reply.status, reply.body["code"]) == (429, "RATE_LIMIT_EXCEEDED")
            again = await ask(api, "POST", PATH, body)
            assert again.status in (200, 202)
            assert again.body["transfer_id"] == first.body["transfer_id"]
            assert again.body["duplicate"]
            other = await ask(api, "POST", PATH, body | {"amount": "101"})
            assert (other.status, other.body["code"]) == (422, "IDEMPOTENCY_MISMATCH")
            listed = await ask(api, "GET", PATH)
            assert len(listed.body["transfers"]) == 1, "refused requests created nothing"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"amount": "0"}, "INVALID_AMOUNT"),
        ({"amount": "1.5"}, "PRECISION_OVERFLOW"),
        ({"amount": "9" * 30}, "OVERFLOW"),
        ({"amount": 5}, "INVALID_REQUEST"),
        ({"target_id": ALICE}, "SAME_ACCOUNT"),
        ({"target_id": 0}, "INVALID_REQUEST"),
        ({"guild_id": 2**63}, "INVALID_REQUEST"),
        ({"expires_hours": 0}, "INVALID_REQUEST"),
        ({"reason": ""}, "INVALID_REQUEST"),
        ({"cid": ""}, "INVALID_REQUEST"),
        ({"initiator_id": BOB}, "INVALID_REQUEST"),
    ],
)
def test_an_invalid_payment_is_refused_with_its_code(
    run: Run, change: dict[str, object], code: str
) -> None:
    async def scenario(api: ApiClient) -> None:
        reply = await ask(api, "POST", PATH, PAY | change)
        assert (reply.status, reply.body["code"]) == (400, code)

    run(scenario)


def test_a_payment_may_expire_after_a_fraction_of_an_hour(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        created = await ask(api, "POST", PATH, PAY | {"expires_hours": 0.25})
        assert created.status == 202
        begins, ends = (
            datetime.fromisoformat(created.body[name]) for name in ("created_at", "expires_at")
        )
        assert ends - begins == timedelta(minutes=15)

    run(scenario)


def test_members_list_their_own_payments_by_guild_and_status_in_pages(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        created = []
        for guild, amount in ((GUILD, "1"), (GUILD, "2"), (78, "3")):
            reply = await ask(api, "POST", PATH, PAY | {"guild_id": guild, "amount": amount})
            created.append(reply.body["transfer_id"])
        for id_ in created:
            await ended(api, id_)
        await ask(api, "POST", PATH, PAY | {"target_id": ALICE}, owner=BOB)

        async def ids(query: str = "") -> list[str]:
            reply = await ask(api, "GET", f"{PATH}?{query}")
            return [row["transfer_id"] for row in reply.body["transfers"]]

        assert await ids() == created[::-1]
        assert await ids(f"guild_id={GUILD}") == created[1::-1]
        assert await ids("status=rejected&limit=1") == [created[2]]
        assert await ids("limit=1&offset=2") == [created[0]]
        assert await ids("status=completed") == []
        for bad in ("status=lost", "offset=-1", "guild_id=x", "limit=0"):
            assert (await ask(api, "GET", f"{PATH}?{bad}")).status == 400

    run(scenario)


def test_without_the_guild_economy_there_are_no_pool_routes(database: str, tmp_path: Path) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("DROP SCHEMA economy CASCADE")

    async def scenario() -> None:
        async with running_service(database, tmp_path) as api:
            body = {"guild_id": 7, "target_id": BOB, "amount": "1"}
            for method, path in (("POST", ""), ("GET", ""), ("GET", f"/{UUID(int=1)}")):
                sent = body if method == "POST" else None
                bearer = token(str(ALICE), "user")
                reply = await api.call(method, f"/api/v1/pool_transfers{path}", sent, bearer)
                assert (reply.status, reply.body["code"]) == (404, "NOT_FOUND")
                assert "not installed" in reply.body["detail"]
            await api.fund("FUNDING", "5")  # Everything else works.

    asyncio.run(scenario())
