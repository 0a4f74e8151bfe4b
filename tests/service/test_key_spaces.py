"""Keys of users, operators, guilds and batches are separate; a repeated batch is made once."""

from tests.service.rig import ALICE, Answer, ApiClient, Run, token

IN = {"from": "FUNDING", "to": "SPOT", "asset": "USDT", "amount": "10"}
DEPOSIT = {"user_id": ALICE, "account": "FUNDING", "asset": "USDT", "amount": "50"}


async def send(api: ApiClient, items: list[dict[str, str]], key: str | None) -> Answer:
    headers = {} if key is None else {"Idempotency-Key": key}
    bearer = token(str(ALICE), "user")
    path = "/api/v1/internal_transfers"
    return await api.call("POST", path, {"transfers": items}, bearer, headers=headers)


def ids(reply: Answer) -> list[str]:
    assert reply.status == 200, reply
    return [item["transfer"]["req_id"] for item in reply.body["results"]]


def test_a_users_cid_does_not_block_an_operators_deposit(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        await api.fund("FUNDING", "100")
        mine = await api.transfer(IN | {"cid": "salary"})
        reply = await api.operator("POST", "/deposit", DEPOSIT | {"cid": "salary"})
        assert (mine.status, reply.status) == (201, 201), reply
        again = await api.operator("POST", "/deposit", DEPOSIT | {"cid": "salary"})
        assert (again.status, again.body["req_id"]) == (200, reply.body["req_id"])
        other = await api.operator("POST", "/deposit", DEPOSIT | {"cid": "salary", "amount": "51"})
        assert (other.status, other.body["code"]) == (422, "IDEMPOTENCY_MISMATCH")
        # Also in the other order.
        await api.operator("POST", "/deposit", DEPOSIT | {"cid": "bonus"})
        assert (await api.transfer(IN | {"cid": "bonus"})).status == 201
        assert (await api.balances())["FUNDING", "USDT"] == "180.000000"

    run(scenario)


def test_a_members_cid_does_not_block_a_user_with_the_guilds_number(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        await api.fund("FUNDING", "100")
        pay = {"guild_id": ALICE, "target_id": 2, "amount": "5", "cid": "x"}
        member = token("1", "user")
        created = await api.call("POST", "/api/v1/pool_transfers", pay, member)
        assert created.status == 202, created
        for cid in ("x", "1:x"):
            reply = await api.transfer(IN | {"cid": cid})
            assert reply.status == 201, (cid, reply)

    run(scenario)


def test_a_batch_that_is_sent_twice_is_made_once(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        await api.fund("FUNDING", "1000")
        items = [IN, IN, IN | {"cid": "own"}]
        first = await send(api, items, "batch-1")
        assert len(set(ids(first))) == 3
        assert ids(await send(api, items, "batch-1")) == ids(first)
        assert (await api.balances())["SPOT", "USDT"] == "30.000000"
        changed = await send(api, [IN | {"amount": "11"}, IN], "batch-1")
        assert [item["status"] for item in changed.body["results"]] == [422, 200]
        another = await send(api, items, "batch-2")
        assert set(ids(another)) & set(ids(first)) == {ids(first)[2]}
        assert (await api.balances())["SPOT", "USDT"] == "50.000000"

    run(scenario)


def test_without_a_key_a_batch_that_is_sent_twice_is_made_twice(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        await api.fund("FUNDING", "1000")
        assert not set(ids(await send(api, [IN], None))) & set(ids(await send(api, [IN], None)))

    run(scenario)
