"""Keys of users, operators, guilds and batches do not meet; a batch that is sent twice is one."""

from tests.service.rig import ALICE, Answer, Front, Play, token

IN = {"from": "FUNDING", "to": "SPOT", "asset": "USDT", "amount": "10"}
DEPOSIT = {"user_id": ALICE, "account": "FUNDING", "asset": "USDT", "amount": "50"}


async def send(front: Front, items: list[dict[str, str]], key: str | None) -> Answer:
    headers = {} if key is None else {"Idempotency-Key": key}
    who = token(str(ALICE), "user")
    path = "/api/v1/internal_transfers"
    return await front.call("POST", path, {"transfers": items}, who, headers=headers)


def ids(said: Answer) -> list[str]:
    assert said.status == 200, said
    return [item["transfer"]["req_id"] for item in said.body["results"]]


def test_a_users_cid_does_not_block_an_operators_deposit(play: Play) -> None:
    async def scene(front: Front) -> None:
        await front.fund("FUNDING", "100")
        mine = await front.transfer(IN | {"cid": "salary"})
        said = await front.desk("POST", "/deposit", DEPOSIT | {"cid": "salary"})
        assert (mine.status, said.status) == (201, 201), said
        again = await front.desk("POST", "/deposit", DEPOSIT | {"cid": "salary"})
        assert (again.status, again.body["req_id"]) == (200, said.body["req_id"])
        other = await front.desk("POST", "/deposit", DEPOSIT | {"cid": "salary", "amount": "51"})
        assert (other.status, other.body["code"]) == (422, "IDEMPOTENCY_MISMATCH")
        # And the other way round.
        await front.desk("POST", "/deposit", DEPOSIT | {"cid": "bonus"})
        assert (await front.transfer(IN | {"cid": "bonus"})).status == 201
        assert (await front.balances())["FUNDING", "USDT"] == "180.000000"

    play(scene)


def test_a_members_cid_does_not_block_a_user_with_the_guilds_number(play: Play) -> None:
    async def scene(front: Front) -> None:
        await front.fund("FUNDING", "100")
        pay = {"guild_id": ALICE, "target_id": 2, "amount": "5", "cid": "x"}
        member = token("1", "user")
        made = await front.call("POST", "/api/v1/pool_transfers", pay, member)
        assert made.status == 202, made
        for cid in ("x", "1:x"):
            said = await front.transfer(IN | {"cid": cid})
            assert said.status == 201, (cid, said)

    play(scene)


def test_a_batch_that_is_sent_twice_is_made_once(play: Play) -> None:
    async def scene(front: Front) -> None:
        await front.fund("FUNDING", "1000")
        items = [IN, IN, IN | {"cid": "own"}]
        first = await send(front, items, "batch-1")
        assert len(set(ids(first))) == 3
        assert ids(await send(front, items, "batch-1")) == ids(first)
        assert (await front.balances())["SPOT", "USDT"] == "30.000000"
        changed = await send(front, [IN | {"amount": "11"}, IN], "batch-1")
        assert [item["status"] for item in changed.body["results"]] == [422, 200]
        another = await send(front, items, "batch-2")
        assert set(ids(another)) & set(ids(first)) == {ids(first)[2]}
        assert (await front.balances())["SPOT", "USDT"] == "50.000000"

    play(scene)


def test_without_a_key_a_batch_that_is_sent_twice_is_two(play: Play) -> None:
    async def scene(front: Front) -> None:
        await front.fund("FUNDING", "1000")
        assert not set(ids(await send(front, [IN], None))) & set(ids(await send(front, [IN], None)))

    play(scene)
