"""Specification 1: its two endpoints, and its recovery rules.

Its §8.1 is CRA-003 and its §8.3 is FND-002; here are §8.2 and the two sides of §8.4.
"""

import signal
import time
from uuid import UUID

import pytest
from ulid import ULID

from tests.acceptance.rig import Answer, Stack, User, until
from tests.acceptance.scenes import CID, killed_at

PATH = "/api/v1/transfer"


def ask(user: User, source: str, target: str, amount: str, wait_s: int = 10) -> Answer:
    body = {"from": source, "to": target, "asset": "USDT", "amount": amount}
    headers = {"Prefer": f"wait={wait_s}"}
    return user.stack.api.call("POST", PATH, body, user.token, headers=headers)


def shown(user: User, req_id: str) -> Answer:
    return user.stack.api.call("GET", f"{PATH}/{req_id}", auth=user.token)


def test_a_transfer_is_made_and_shown_in_the_older_shape(shared: Stack) -> None:
    user, began_ms = shared.user(funding=100), time.time() * 1000
    reply = ask(user, "funding", "trading", "10")
    assert reply.status == 200
    assert reply.body.keys() == {"req_id", "status", "message"}
    assert reply.body["status"] == "committed"
    req_id = reply.body["req_id"]
    assert str(UUID(req_id)) == req_id
    found = shown(user, req_id)
    assert found.status == 200
    assert (found.body["req_id"], found.body["state"]) == (req_id, "committed")
    assert abs(found.body["created_at"] - began_ms) < 60_000
    assert user.state(str(ULID.from_uuid(UUID(req_id)))) == "COMMITTED", "both routes show it"
    assert ask(user, "trading", "funding", "4").body["status"] == "committed"
    user.has(94, 6)


def test_a_refusal_and_a_rollback_are_failed_in_the_older_shape(shared: Stack) -> None:
    user = shared.user(funding=100, spot=100)
    reply = ask(user, "trading", "funding", "101")
    assert (reply.status, reply.body["status"]) == (200, "failed")
    assert "INSUFFICIENT_BALANCE" in reply.body["message"]
    assert shown(user, reply.body["req_id"]).body["state"] == "failed"
    user.set_status("SPOT", "DISABLED")
    reply = ask(user, "funding", "trading", "10")
    assert (reply.status, reply.body["status"]) == (200, "failed")
    assert "ACCOUNT_DISABLED" in reply.body["message"]
    assert shown(user, reply.body["req_id"]).body["state"] == "rolled_back"
    user.has(100, 100)


@pytest.mark.parametrize(
    ("source", "target", "amount", "code"),
    [
        ("funding", "funding", "10", "SAME_ACCOUNT"),
        ("FUNDING", "trading", "10", "INVALID_ACCOUNT_TYPE"),
        ("funding", "spot", "10", "INVALID_ACCOUNT_TYPE"),
        ("funding", "trading", "-1", "INVALID_AMOUNT"),
        ("funding", "trading", "0.0000001", "PRECISION_OVERFLOW"),
    ],
)
def test_a_malformed_request_is_a_problem_in_the_older_shape_too(
    shared: Stack, source: str, target: str, amount: str, code: str
) -> None:
    user = shared.user(funding=100)
    reply = ask(user, source, target, amount)
    assert (reply.status, reply.code) == (400, code)
    assert reply.headers["content-type"] == "application/problem+json"
    user.has(100, 0)


@pytest.mark.slow
def test_8_2_a_source_without_an_answer_and_then_a_crash(stack: Stack) -> None:
    """It is unknown whether the core has debited, so the next process asks it again."""
    user = killed_at(stack, "before debit", "out")
    stack.core.signal(signal.SIGSTOP)
    api = stack.start_api()
    [(id_, state, _)] = user.transfers()
    assert state == "SOURCE_PENDING"
    until(lambda: user.shown(str(id_))["attempts"] >= 2)
    api.kill()
    stack.core.signal(signal.SIGCONT)
    stack.start_api()
    user.ends(str(ULID.from_uuid(id_)), "COMMITTED")
    assert user.move("out", "10", cid=CID).status == 200
    user.has(110, 90)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "target", "state", "after"),
    [
        ("trading", "funding", "source_pending", (110, 90)),
        ("funding", "trading", "target_pending", (90, 110)),
    ],
)
def test_8_4_an_unreachable_system_is_asked_again(
    stack: Stack, source: str, target: str, state: str, after: tuple[int, int]
) -> None:
    stack.start_api()
    user = stack.user(funding=100, spot=100)
    stack.core.kill()
    reply = ask(user, source, target, "10", wait_s=1)
    assert (reply.status, reply.body["status"]) == (202, "pending")
    req_id = reply.body["req_id"]
    assert shown(user, req_id).body["state"] == state
    stack.start_core()
    until(lambda: shown(user, req_id).body["state"] == "committed")
    user.has(*after)
