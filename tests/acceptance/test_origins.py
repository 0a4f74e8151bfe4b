"""Bugs of earlier systems, each tested against this one."""

import pytest
from ulid import ULID

from tests.acceptance.rig import Stack

BTC = 1


def test_a_large_amount_with_all_its_decimals_is_not_read_as_zero(shared: Stack) -> None:
    user = shared.user()
    user.fund("FUNDING", "60000000", "BTC")
    reply = user.move("in", "50000000.00000000", asset="BTC")
    assert (reply.status, reply.body["amount"]) == (201, "50000000.00000000")
    assert user.held(BTC) == (10_000_000 * 10**8, 50_000_000 * 10**8)


def test_the_same_cid_twice_is_deducted_once(shared: Stack) -> None:
    user = shared.user(funding=100)
    first = user.move("in", "10", cid="twice")
    again = user.move("in", "10.000000", cid="twice")
    assert (first.status, again.status) == (201, 200)
    body = {"from": "FUNDING", "to": "SPOT", "asset": "USDT", "amount": "10"}
    headers = {"Idempotency-Key": "twice"}
    path = "/api/v1/internal_transfer"
    header = shared.api.call("POST", path, body, user.token, headers=headers)
    assert (header.status, header.body["req_id"]) == (200, first.body["req_id"])
    user.has(90, 10)


def test_nine_decimals_of_an_asset_with_six_are_refused(shared: Stack) -> None:
    user = shared.user(funding=100)
    for amount in ("1.000000001", "1.000000000", "0.000000001"):
        reply = user.move("in", amount)
        assert (reply.status, reply.code) == (400, "PRECISION_OVERFLOW")
    user.has(100, 0)


@pytest.mark.slow
def test_a_rollback_of_the_trading_side_restores_the_balance_for_good(stack: Stack) -> None:
    """Not only in the reply: the money can be spent, and survives a restart of the core."""
    stack.start_api()
    user = stack.user(funding=1, spot=100)
    user.set_status("FUNDING", "DISABLED")
    reply = user.move("out", "100")
    assert (reply.status, reply.body["state"]) == (422, "ROLLED_BACK")
    user.has(1, 100)
    stack.core.kill()
    stack.start_core()
    user.has(1, 100)
    user.set_status("FUNDING", "ACTIVE")
    assert user.move("out", "100").status == 201
    user.has(101, 0)


def test_a_balance_and_its_operation_change_in_one_transaction(shared: Stack) -> None:
    """PostgreSQL records which transaction wrote a row: xmin."""
    user = shared.user(funding=100, spot=100)
    for direction, verb, version in (("in", "debit", 0), ("out", "credit", 1)):
        req_id = user.move(direction, "10").body["req_id"]
        id_ = ULID.from_str(req_id).to_uuid()
        [writers] = shared.rows(
            "SELECT a.xmin::text, o.xmin::text, h.xmin::text FROM ledger_operations AS o"
            " JOIN ledger_accounts AS a USING (owner, book, asset_id)"
            " JOIN history AS h ON (h.transfer_id, h.version) = (o.transfer_id, o.version)"
            " WHERE o.transfer_id = %s AND o.version = %s AND o.verb = %s",
            id_,
            version,
            verb,
        )
        assert len(set(writers)) == 1, writers
    user.has(100, 100)
