"""ATK: requests of an attacker are refused, and no money moves."""

import json
import time

import jwt
import pytest

from tests.acceptance.rig import KID, PRIVATE, TERMS, Answer, Stack, User, token, transfer_body
from tidegate.service.keys import issue, new_keypair

TRANSFER = "/api/v1/internal_transfer"


def refused(user: User, reply: Answer, status: int, *codes: str) -> None:
    """The reply is a problem with one of these codes, and no transfer exists."""
    assert reply.status == status, reply
    assert reply.code in codes, reply
    assert reply.headers["content-type"] == "application/problem+json"
    assert user.transfers() == []
    user.has(100, 0)


def test_ATK_001_one_users_token_does_not_move_another_users_funds(shared: Stack) -> None:
    alice, bob = shared.user(funding=100), shared.user(funding=100)
    theft = transfer_body("in", "10") | {"user_id": bob.owner}
    refused(bob, shared.api.call("POST", TRANSFER, theft, alice.token), 403, "FORBIDDEN")
    older = {"from": "funding", "to": "trading", "asset": "USDT", "amount": "10"}
    older |= {"user_id": bob.owner}  # type: ignore[dict-item]
    reply = shared.api.call("POST", "/api/v1/transfer", older, alice.token)
    refused(bob, reply, 403, "FORBIDDEN")
    out = {"user_id": bob.owner, "account": "FUNDING", "asset": "USDT", "amount": "10", "cid": "x"}
    reply = shared.api.call("POST", "/api/v1/operator/external_withdrawal", out, alice.token)
    refused(bob, reply, 403, "FORBIDDEN")
    refused(alice, reply, 403, "FORBIDDEN")


def test_ATK_001_another_users_transfer_looks_like_one_that_is_not_there(shared: Stack) -> None:
    alice, bob = shared.user(), shared.user(funding=100)
    req_id = bob.move("in", "10").body["req_id"]
    unknown = "0" * 26
    replies = [
        shared.api.call("GET", f"{TRANSFER}/{id_}", auth=alice.token) for id_ in (req_id, unknown)
    ]
    assert [answer.status for answer in replies] == [404, 404]
    for answer in replies:
        del answer.body["request_id"]
    assert replies[0].body == replies[1].body


def test_ATK_002_a_tampered_user_id_is_refused(shared: Stack) -> None:
    user = shared.user(funding=100)
    for other in (user.owner + 1, 0, -1, 2**63 - 1):
        refused(user, user.move("in", "10", user_id=other), 403, "FORBIDDEN")
    assert user.move("in", "10", user_id=user.owner).status == 201


def test_ATK_003_a_negative_amount_is_refused(shared: Stack) -> None:
    user = shared.user(funding=100)
    for direction in ("in", "out"):
        refused(user, user.move(direction, "-100"), 400, "INVALID_AMOUNT")
    refused(user, user.move("in", "-0.000001"), 400, "INVALID_AMOUNT")


def test_ATK_004_a_zero_amount_is_refused(shared: Stack) -> None:
    user = shared.user(funding=100)
    for amount in ("0", "0.0", "0.000000"):
        refused(user, user.move("in", amount), 400, "INVALID_AMOUNT")


def test_ATK_005_more_decimals_than_the_asset_has_are_refused(shared: Stack) -> None:
    user = shared.user(funding=100)
    reply = user.move("in", "0.000000001", asset="BTC")
    refused(user, reply, 400, "PRECISION_OVERFLOW")
    refused(user, user.move("in", "1.0000001"), 400, "PRECISION_OVERFLOW")
    refused(user, user.move("in", "1.0", asset="POINT"), 400, "PRECISION_OVERFLOW")


def test_ATK_006_an_amount_beyond_u64_is_refused(shared: Stack) -> None:
    user = shared.user(funding=100)
    for amount in (str(2**64), str(2**127), str(2**128), "9" * 64):
        refused(user, user.move("in", amount), 400, "OVERFLOW")
    for number in (2**64, 2**63, 100):
        reply = user.move("in", "1", amount=number)
        refused(user, reply, 400, "INVALID_REQUEST")


def test_ATK_007_a_transfer_to_the_same_account_is_refused(shared: Stack) -> None:
    user = shared.user(funding=100)
    for account in ("SPOT", "FUNDING"):
        same = {"from": account, "to": account}
        refused(user, user.move("in", "10", **same), 400, "SAME_ACCOUNT")


def test_ATK_008_an_account_type_that_does_not_exist_is_refused(shared: Stack) -> None:
    user = shared.user(funding=100)
    for name in ("INVALID", "", "spot", "OUTSIDE", "SUSPENSE", "IN_FLIGHT"):
        refused(user, user.move("in", "10", **{"from": name}), 400, "INVALID_ACCOUNT_TYPE")
        refused(user, user.move("in", "10", to=name), 400, "INVALID_ACCOUNT_TYPE")
    reply = user.move("in", "10", to="MARGIN")
    refused(user, reply, 400, "UNSUPPORTED_ACCOUNT_TYPE")


def test_ATK_009_an_asset_that_does_not_exist_is_refused(shared: Stack) -> None:
    user = shared.user(funding=100)
    for asset in ("999999", "XYZ", "usdt", "", "3"):
        refused(user, user.move("in", "10", asset=asset), 400, "INVALID_ASSET")


def test_ATK_010_the_second_of_a_duplicate_cid_returns_the_first_result(shared: Stack) -> None:
    user = shared.user(funding=100)
    first, second = (user.move("in", "10", cid="once") for _ in range(2))
    assert (first.status, second.status) == (201, 200)
    assert (first.body["duplicate"], second.body["duplicate"]) == (False, True)
    assert second.body | {"duplicate": False} == first.body
    third = user.move("in", "11", cid="once")
    assert (third.status, third.code) == (422, "IDEMPOTENCY_MISMATCH")
    other = shared.user(funding=100)
    assert other.move("in", "10", cid="once").status == 201, "a cid belongs to its owner"
    assert len(user.transfers()) == 1
    user.has(90, 10)
    other.has(90, 10)


def test_ATK_011_without_a_token_nobody_gets_in(shared: Stack) -> None:
    user = shared.user(funding=100)
    body = transfer_body("in", "10") | {"user_id": user.owner}
    for headers in ({}, {"Authorization": ""}, {"Authorization": f"Basic {user.token}"}):
        reply = shared.api.call("POST", TRANSFER, body, headers=headers)
        refused(user, reply, 401, "UNAUTHORIZED")
        assert reply.headers["www-authenticate"] == "Bearer"


def test_ATK_012_an_expired_token_is_refused(shared: Stack) -> None:
    user = shared.user(funding=100)
    for age_s in (906, 3600):
        claims = TERMS.claims(str(user.owner), ["user"], time.time() - age_s)
        stale = issue(PRIVATE, KID, claims)
        reply = shared.api.call("POST", TRANSFER, transfer_body("in", "10"), stale)
        refused(user, reply, 401, "UNAUTHORIZED")


def forgeries(user: User) -> list[str]:
    """Forged tokens for this user."""
    claims = TERMS.claims(str(user.owner), ["user"], time.time())
    stranger, _ = new_keypair()
    head, payload, signature = user.token.split(".")
    _, other, _ = token(str(user.owner + 1), "user").split(".")
    unsigned = jwt.encode(claims, "", algorithm="none", headers={"kid": KID})
    shared_secret = jwt.encode(claims, "s" * 64, algorithm="HS256", headers={"kid": KID})
    return [
        issue(stranger, KID, claims),
        issue(stranger, "unknown", claims),
        f"{head}.{other}.{signature}",
        f"{head}.{payload}.{'A' * len(signature)}",
        f"{head}.{payload}.",
        unsigned,
        shared_secret,
        "nonsense",
    ]


def test_ATK_013_a_forged_token_is_refused(shared: Stack) -> None:
    user = shared.user(funding=100)
    for forged in forgeries(user):
        reply = shared.api.call("POST", TRANSFER, transfer_body("in", "10"), forged)
        refused(user, reply, 401, "UNAUTHORIZED")


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'{"from": "FUNDING"}', b"\xff", b"null"])
def test_a_body_that_is_no_request_is_refused(shared: Stack, raw: bytes) -> None:
    user = shared.user(funding=100)
    headers = {"Authorization": f"Bearer {user.token}", "Content-Type": "application/json"}
    reply = shared.api.client.post(TRANSFER, content=raw, headers=headers)
    assert reply.status_code == 400
    assert json.loads(reply.content)["code"] == "INVALID_REQUEST"
    user.has(100, 0)
