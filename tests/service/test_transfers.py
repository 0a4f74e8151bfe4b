"""The routes of an owner, as a caller sees them."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tests.service.rig import ALICE, BOB, ApiClient, Run, token
from tidegate.core.transfer import Question

IN = {"from": "FUNDING", "to": "SPOT", "asset": "USDT", "amount": "10.5"}


def test_a_transfer_is_made_shown_and_listed(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        await api.fund("FUNDING", "100")
        reply = await api.transfer(IN | {"cid": "first"})
        assert reply.status == 201, reply
        body = reply.body
        assert (body["state"], body["cid"], body["amount"]) == ("COMMITTED", "first", "10.500000")
        assert body["req_id"] == body["transfer_id"]
        assert len(body["req_id"]) == 26
        assert reply.headers["location"].endswith(body["req_id"])
        bearer = token(str(ALICE), "user")
        shown = await api.call("GET", f"/api/v1/internal_transfer/{body['req_id']}", bearer=bearer)
        assert shown.body["state"] == "COMMITTED"
        listed = await api.call("GET", "/api/v1/internal_transfer?limit=5", bearer=bearer)
        assert [t["req_id"] for t in listed.body["transfers"]] == [body["req_id"]]
        assert listed.body["next_cursor"] is None
        assert await api.balances() == {
            ("FUNDING", "USDT"): "89.500000",
            ("SPOT", "USDT"): "10.500000",
        }

    run(scenario)


def test_a_list_is_read_page_by_page(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        await api.fund("FUNDING", "100")
        made = [(await api.transfer(IN | {"amount": "1"})).body["req_id"] for _ in range(5)]
        bearer, cursor, seen = token(str(ALICE), "user"), "", []
        for size in (2, 2, 1):
            path = f"/api/v1/internal_transfer?limit=2&state=COMMITTED{cursor}"
            page = (await api.call("GET", path, bearer=bearer)).body
            assert len(page["transfers"]) == size
            seen += [t["req_id"] for t in page["transfers"]]
            cursor = f"&cursor={page['next_cursor']}"
        assert page["next_cursor"] is None
        assert seen == made[::-1], "newest first, none twice, none left out"

    run(scenario)


def test_the_same_cid_is_the_same_transfer_and_another_body_a_422(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        await api.fund("FUNDING", "100")
        first = await api.transfer(IN, headers={"Idempotency-Key": "k"})
        again = await api.transfer(IN | {"cid": "k"})
        assert (first.status, again.status) == (201, 200)
        assert again.body["duplicate"] is True
        assert again.body["req_id"] == first.body["req_id"]
        other = await api.transfer(IN | {"cid": "k", "amount": "11"})
        assert (other.status, other.body["code"]) == (422, "IDEMPOTENCY_MISMATCH")
        both = await api.transfer(IN | {"cid": "k"}, headers={"Idempotency-Key": "other"})
        assert (both.status, both.body["code"]) == (400, "INVALID_REQUEST")

    run(scenario)


def test_a_replay_is_answered_although_the_asset_is_suspended_by_now(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        await api.fund("FUNDING", "100")
        first = await api.transfer(IN | {"cid": "k"})
        await api.operator("PATCH", "/assets/USDT", {"status": "SUSPENDED"})
        again = await api.transfer(IN | {"cid": "k"})
        assert (again.status, again.body["req_id"]) == (200, first.body["req_id"])
        fresh = await api.transfer(IN | {"cid": "k2"})
        assert (fresh.status, fresh.body["code"]) == (422, "ASSET_SUSPENDED")

    run(scenario)


def test_a_refusal_by_a_system_is_a_422_with_the_transfer(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        await api.fund("FUNDING", "1")
        reply = await api.transfer(IN | {"cid": "k"})
        assert (reply.status, reply.body["code"]) == (422, "INSUFFICIENT_BALANCE")
        assert reply.body["state"] == "FAILED"
        assert reply.headers["content-type"] == "application/problem+json"
        again = await api.transfer(IN | {"cid": "k"})
        assert (again.status, again.body["req_id"]) == (422, reply.body["req_id"])
        shown = await api.call(
            "GET",
            f"/api/v1/internal_transfer/{reply.body['req_id']}",
            bearer=token(str(ALICE), "user"),
        )
        assert shown.body["state"] == "FAILED"

    run(scenario)


def test_a_strangers_transfer_and_one_that_is_not_there_look_the_same(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        await api.fund("FUNDING", "100")
        made = await api.transfer(IN)
        bearer = token(str(BOB), "user")
        foreign = await api.call(
            "GET", f"/api/v1/internal_transfer/{made.body['req_id']}", bearer=bearer
        )
        absent = await api.call(
            "GET", "/api/v1/internal_transfer/01JFVQ2X8Z0Y1M3N4P5R6S7T8V", bearer=bearer
        )
        rubbish = await api.call("GET", "/api/v1/internal_transfer/…", bearer=bearer)
        for reply in (foreign, absent, rubbish):
            reply.body.pop("request_id")
            assert reply.status == 404
        assert foreign.body == absent.body == rubbish.body

    run(scenario)


def test_a_batch_answers_each_item_by_itself(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        await api.fund("FUNDING", "12")
        items = [IN | {"cid": "a"}, IN | {"cid": "b"}, IN | {"amount": "-1"}, IN | {"to": "MOON"}]
        reply = await api.call(
            "POST", "/api/v1/internal_transfers", {"transfers": items}, token(str(ALICE), "user")
        )
        assert reply.status == 200
        assert [r["status"] for r in reply.body["results"]] == [201, 422, 400, 400]
        codes = [r.get("code") for r in reply.body["results"]]
        assert codes == [None, "INSUFFICIENT_BALANCE", "INVALID_AMOUNT", "INVALID_ACCOUNT_TYPE"]

    run(scenario)


def test_an_internal_error_fails_only_its_own_item(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        await api.fund("FUNDING", "100")
        ledger: Any = api.gate.engine.context.local["ledger"]
        ask = ledger.ask

        async def failing_ask(tx: Any, questions: Sequence[Question]) -> Any:
            if any(question.amount == 13_000_000 for question in questions):
                raise KeyError("thirteen")
            return await ask(tx, questions)

        ledger.ask = failing_ask
        items = [IN | {"cid": cid, "amount": amount} for cid, amount in (("a", "13"), ("b", "2"))]
        reply = await api.call(
            "POST", "/api/v1/internal_transfers", {"transfers": items}, token(str(ALICE), "user")
        )
        assert reply.status == 200
        assert [r["status"] for r in reply.body["results"]] == [500, 201]
        assert reply.body["results"][0]["code"] == "SYSTEM_ERROR"
        assert "thirteen" not in str(reply.body), "an exception must not reach the client"

    run(scenario)


def test_the_older_route_uses_funding_and_trading(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        await api.fund("FUNDING", "100")
        bearer = token(str(ALICE), "user")
        body = {"from": "funding", "to": "trading", "user_id": ALICE, "asset": "USDT"}
        reply = await api.call("POST", "/api/v1/transfer", body | {"amount": "1.5"}, bearer)
        assert (reply.status, reply.body["status"]) == (200, "committed")
        shown = await api.call("GET", f"/api/v1/transfer/{reply.body['req_id']}", bearer=bearer)
        assert shown.body["state"] == "committed"
        assert shown.body["created_at"] > 1_700_000_000_000
        failed = await api.call("POST", "/api/v1/transfer", body | {"amount": "500"}, bearer)
        assert (failed.status, failed.body["status"]) == (200, "failed")
        assert failed.body["message"] == "INSUFFICIENT_BALANCE"

    run(scenario)


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"user_id": BOB}, 403, "FORBIDDEN"),
        ({"to": "FUNDING"}, 400, "SAME_ACCOUNT"),
        ({"to": "MOON"}, 400, "INVALID_ACCOUNT_TYPE"),
        ({"to": "FUTURE"}, 400, "UNSUPPORTED_ACCOUNT_TYPE"),
        ({"asset": "DOGE"}, 400, "INVALID_ASSET"),
        ({"amount": "0"}, 400, "INVALID_AMOUNT"),
        ({"amount": "1e3"}, 400, "INVALID_AMOUNT"),
        ({"amount": "0.0000001"}, 400, "PRECISION_OVERFLOW"),
        ({"amount": "18446744073709551616"}, 400, "OVERFLOW"),
        ({"amount": 5}, 400, "INVALID_REQUEST"),
        ({"surprise": 1}, 400, "INVALID_REQUEST"),
        ({"cid": ""}, 400, "INVALID_REQUEST"),
    ],
)
def test_bad_input_gets_its_code(
    run: Run, change: dict[str, object], status: int, code: str
) -> None:
    async def scenario(api: ApiClient) -> None:
        reply = await api.transfer(IN | change)
        assert (reply.status, reply.body["code"]) == (status, code)
        assert reply.body["request_id"] == reply.headers["x-request-id"]

    run(scenario)


def test_many_posts_with_one_cid_make_one_transfer(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        await api.fund("FUNDING", "100")
        reply = await asyncio.gather(*(api.transfer(IN | {"cid": "k"}) for _ in range(300)))
        assert len({s.body["req_id"] for s in reply}) == 1
        assert sorted({s.status for s in reply}) == [200, 201]
        assert (await api.balances())["FUNDING", "USDT"] == "89.500000"

    run(scenario)


def test_metrics_have_the_names_that_dashboards_were_built_on(run: Run) -> None:
    async def scenario(api: ApiClient) -> None:
        await api.fund("FUNDING", "100")
        await api.transfer(IN)
        await api.transfer(IN | {"amount": "-1"})
        page = (await api.call("GET", "/metrics")).body
        for line in (
            'internal_transfer_by_status{flow="internal_transfer",status="COMMITTED"} 1.0',
            'internal_transfer_by_status{flow="deposit",status="COMPLETED"} 1.0',
            'internal_transfer_validation_errors_total{code="INVALID_AMOUNT"} 1.0',
            'internal_transfer_settlement_lag_seconds_count{flow="internal_transfer"} 1.0',
            'request_duration_seconds_count{route="/api/v1/internal_transfer"} 2.0',
            "internal_transfer_requests_total{",
            'tidegate_lane_closed{lane="core"} 0.0',
            "tidegate_core_floor_seconds 0.0",
        ):
            assert line in page, line

    run(scenario)
