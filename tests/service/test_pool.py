"""The pool over HTTP: paid as oneself, seen by the two it is between, listed by who pays."""

import asyncio
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.service.rig import ALICE, BOB, Answer, Front, Play, fronted, token
from tidegate.core.kind import Party
from tidegate.core.request import Request
from tidegate.service.rate_limits import OwnerRateLimit
from tidegate.systems.guild import POINT, book_of

GUILD, PATH = 77, "/api/v1/pool_transfers"
PAY = {"guild_id": GUILD, "target_id": BOB, "amount": "100"}


async def endow(front: Front, amount: int, member: int = ALICE) -> None:
    parties = {
        "source": Party("ledger", "OUTSIDE", GUILD),
        "target": Party("ledger", book_of(member), GUILD),
        "suspense": Party("ledger", "SUSPENSE", GUILD),
    }
    await front.gate.engine.transfer(Request(GUILD, "deposit", parties, POINT, amount))


async def ask(
    front: Front, method: str, path: str, body: object = None, owner: int = ALICE
) -> Answer:
    return await front.call(method, path, body, token(str(owner), "user"))


async def ended(front: Front, id_: str) -> Answer:
    for _ in range(200):
        said = await ask(front, "GET", f"{PATH}/{id_}")
        if said.body["status"] in ("completed", "rejected"):
            return said
        await asyncio.sleep(0.05)
    raise AssertionError(said)


def test_a_member_pays_and_both_can_see_it(play: Play) -> None:
    async def scene(front: Front) -> None:
        await endow(front, 300)
        made = await ask(front, "POST", PATH, PAY | {"reason": "lunch"})
        assert made.status == 202
        assert (made.body["initiator_id"], made.body["amount"]) == (ALICE, "100")
        assert made.headers["location"] == f"{PATH}/{made.body['transfer_id']}"
        said = await ended(front, made.body["transfer_id"])
        assert said.body["status"] == "completed"
        assert said.body["checks"] == {"balance": 1, "cooldown": 1, "daily_limit": 1}
        assert said.body["metadata"] == {"reason": "lunch"}
        id_ = made.body["transfer_id"]
        assert (await ask(front, "GET", f"{PATH}/{id_}", owner=BOB)).status == 200
        assert (await ask(front, "GET", f"{PATH}/{id_}", owner=4_999)).status == 404

    play(scene)


def test_a_cid_is_one_transfer_of_one_member(play: Play) -> None:
    async def scene(front: Front) -> None:
        body = PAY | {"cid": "once"}
        first, again = [await ask(front, "POST", PATH, body) for _ in range(2)]
        assert first.body["transfer_id"] == again.body["transfer_id"]
        assert [first.body["duplicate"], again.body["duplicate"]] == [False, True]
        other = await ask(front, "POST", PATH, body | {"amount": "101"})
        assert (other.status, other.body["code"]) == (422, "IDEMPOTENCY_MISMATCH")
        bobs = await ask(front, "POST", PATH, body | {"target_id": ALICE}, owner=BOB)
        assert bobs.body["transfer_id"] != first.body["transfer_id"]

    play(scene)


def test_a_replay_is_answered_however_many_requests_there_are(
    database: str, tmp_path: Path
) -> None:
    async def whole() -> None:
        async with fronted(database, tmp_path, OwnerRateLimit(1, lambda: 0.0)) as front:
            body = PAY | {"cid": "once"}
            first = await ask(front, "POST", PATH, body)
            assert first.status == 202
            for late in (PAY, PAY | {"cid": "another"}):
                said = await ask(front, "POST", PATH, late)
                assert (said.status, said.body["code"]) == (429, "RATE_LIMIT_EXCEEDED")
            again = await ask(front, "POST", PATH, body)
            assert again.status in (200, 202)
            assert again.body["transfer_id"] == first.body["transfer_id"]
            assert again.body["duplicate"]
            other = await ask(front, "POST", PATH, body | {"amount": "101"})
            assert (other.status, other.body["code"]) == (422, "IDEMPOTENCY_MISMATCH")
            listed = await ask(front, "GET", PATH)
            assert len(listed.body["transfers"]) == 1, "who was turned away made nothing"

    asyncio.run(whole())


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
def test_what_makes_no_sense_is_refused_by_name(
    play: Play, change: dict[str, object], code: str
) -> None:
    async def scene(front: Front) -> None:
        said = await ask(front, "POST", PATH, PAY | change)
        assert (said.status, said.body["code"]) == (400, code)

    play(scene)


def test_a_payment_may_live_for_a_fraction_of_an_hour(play: Play) -> None:
    async def scene(front: Front) -> None:
        made = await ask(front, "POST", PATH, PAY | {"expires_hours": 0.25})
        assert made.status == 202
        begins, ends = (
            datetime.fromisoformat(made.body[name]) for name in ("created_at", "expires_at")
        )
        assert ends - begins == timedelta(minutes=15)

    play(scene)


def test_lists_are_ones_own_by_guild_and_status_in_pages(play: Play) -> None:
    async def scene(front: Front) -> None:
        made = []
        for guild, amount in ((GUILD, "1"), (GUILD, "2"), (78, "3")):
            said = await ask(front, "POST", PATH, PAY | {"guild_id": guild, "amount": amount})
            made.append(said.body["transfer_id"])
        for id_ in made:
            await ended(front, id_)
        await ask(front, "POST", PATH, PAY | {"target_id": ALICE}, owner=BOB)

        async def ids(query: str = "") -> list[str]:
            said = await ask(front, "GET", f"{PATH}?{query}")
            return [row["transfer_id"] for row in said.body["transfers"]]

        assert await ids() == made[::-1]
        assert await ids(f"guild_id={GUILD}") == made[1::-1]
        assert await ids("status=rejected&limit=1") == [made[2]]
        assert await ids("limit=1&offset=2") == [made[0]]
        assert await ids("status=completed") == []
        for bad in ("status=lost", "offset=-1", "guild_id=x", "limit=0"):
            assert (await ask(front, "GET", f"{PATH}?{bad}")).status == 400

    play(scene)
