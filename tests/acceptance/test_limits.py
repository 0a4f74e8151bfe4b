"""The three limits over HTTP: 429 with the time to retry. A repeated request never counts."""

import pytest

from tests.acceptance.rig import Answer, Stack

pytestmark = pytest.mark.slow


def limited(reply: Answer, code: str) -> None:
    assert (reply.status, reply.code, reply.body["retryable"]) == (429, code, True), reply
    assert int(reply.headers["retry-after"]) >= 1
    assert "req_id" not in reply.body, "no transfer was created"


def test_too_many_requests_in_a_second_are_a_429_and_a_replay_is_not(stack: Stack) -> None:
    stack.start_api(rate_limits=True, requests_per_second=3)
    user = stack.user(funding=100)
    first = user.move("in", "1", cid="first")
    assert first.status == 201
    replies = [user.move("in", "1") for _ in range(20)]
    refused = [reply for reply in replies if reply.status == 429]
    assert len(refused) >= 5, [reply.status for reply in replies]
    for reply in refused:
        limited(reply, "RATE_LIMIT_EXCEEDED")
    again = user.move("in", "1", cid="first")
    assert (again.status, again.body["req_id"]) == (200, first.body["req_id"])
    made = 1 + sum(reply.status == 201 for reply in replies)
    assert made + len(refused) == 21
    user.has(100 - made, made)


def test_too_many_transfers_in_a_day_are_a_429_whatever_became_of_them(stack: Stack) -> None:
    stack.start_api(rate_limits=True, requests_per_second=1_000, transfers_per_day=3)
    user, other = stack.user(funding=100), stack.user(funding=100)
    assert user.move("in", "1", cid="first").status == 201
    assert user.move("in", "999").status == 422
    for _ in range(3):
        assert user.move("in", "1", cid="first").status == 200
    assert user.move("in", "1").status == 201
    limited(user.move("in", "1"), "DAILY_LIMIT_EXCEEDED")
    assert user.move("in", "1", cid="first").status == 200
    assert other.move("in", "1").status == 201, "each owner has separate limits"
    user.has(98, 2)


def test_too_much_of_an_asset_in_a_day_is_a_429(stack: Stack) -> None:
    amounts = {"USDT": "5.5"}
    stack.start_api(rate_limits=True, requests_per_second=1_000, daily_amounts=amounts)
    user = stack.user(funding=100)
    assert user.move("in", "5").status == 201
    limited(user.move("out", "1"), "DAILY_AMOUNT_EXCEEDED")
    assert user.move("in", "0.5").status == 201
    limited(user.move("in", "0.000001"), "DAILY_AMOUNT_EXCEEDED")


def test_without_limits_no_request_is_refused(stack: Stack) -> None:
    stack.start_api(requests_per_second=1, transfers_per_day=1, daily_amounts={"USDT": "1"})
    user = stack.user(funding=100)
    assert [user.move("in", "1").status for _ in range(10)] == [201] * 10
