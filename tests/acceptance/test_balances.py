"""INV and BAL: the sum of money is constant, and no account is overdrawn."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.acceptance.rig import UNIT, Stack


def test_INV_001_a_transfer_leaves_the_sum_as_it_was(shared: Stack) -> None:
    user = shared.user(funding=100, spot=50)
    steps = (("in", "30", (70_000_000, 80_000_000)), ("out", "75.5", (145_500_000, 4_500_000)))
    for direction, amount, after in steps:
        before = sum(user.held())
        assert user.move(direction, amount).status == 201
        held = user.held()
        assert sum(held) == before == 150 * UNIT
        assert held == after


def test_INV_002_a_failed_transfer_leaves_the_source_as_it_was(shared: Stack) -> None:
    user = shared.user(funding=100, spot=50)
    for direction, amount in (("in", "100.000001"), ("out", "50.000001")):
        reply = user.move(direction, amount)
        assert (reply.status, reply.code, reply.body["state"]) == (
            422,
            "INSUFFICIENT_BALANCE",
            "FAILED",
        )
        user.has(100, 50)


@pytest.mark.parametrize(("direction", "closed"), [("in", "SPOT"), ("out", "FUNDING")])
def test_INV_003_a_rollback_restores_the_source_fully(
    shared: Stack, direction: str, closed: str
) -> None:
    user = shared.user(funding=100, spot=50)
    user.set_status(closed, "DISABLED")
    reply = user.move(direction, "33.333333")
    assert (reply.status, reply.code) == (422, "ACCOUNT_DISABLED")
    assert reply.body["state"] == "ROLLED_BACK"
    assert user.state(reply.body["req_id"]) == "ROLLED_BACK"
    user.has(100, 50)


@pytest.mark.slow
def test_INV_004_after_a_crash_of_everything_all_balances_are_right(stack: Stack) -> None:
    """The core and the API die during twenty transfers. The sums are checked afterwards."""
    moment = "after debit"
    api = stack.start_api(moment)
    users = [stack.user(funding=100, spot=100) for _ in range(10)]
    api.arm()
    with ThreadPoolExecutor(20) as crowd:
        for user in users:
            crowd.submit(user.move_into_death, "in", "10", "there")
            crowd.submit(user.move_into_death, "out", "25", "back")
        api.dies(moment)
        stack.core.kill()
    stack.start_core()
    stack.start_api()
    for user in users:
        for direction, amount, cid in (("in", "10", "there"), ("out", "25", "back")):
            assert user.move(direction, amount, cid=cid).status in (200, 201)
        assert {state for _, state, _ in user.transfers()} == {"COMMITTED"}
        user.has(115, 85)
    totals = stack.ask_core(lambda core: core.totals()).sums
    [(inside, outside)] = stack.rows(
        "SELECT sum(available) FILTER (WHERE book <> 'OUTSIDE'),"
        " sum(available) FILTER (WHERE book = 'OUTSIDE') FROM ledger_accounts"
    )
    assert inside + totals["SPOT", 3] == -outside == 10 * 200 * UNIT


def test_BAL_001_more_than_is_available_is_refused_and_changes_nothing(shared: Stack) -> None:
    user = shared.user(funding=100, spot=50)
    for direction, amount in (("in", "101"), ("out", "51")):
        reply = user.move(direction, amount)
        assert (reply.status, reply.code) == (422, "INSUFFICIENT_BALANCE")
        user.has(100, 50)


def test_BAL_002_all_that_is_available_can_be_moved(shared: Stack) -> None:
    user = shared.user(funding=100)
    assert user.move("in", "100").body["state"] == "COMMITTED"
    user.has(0, 100)
    assert user.move("out", "100.000000").body["state"] == "COMMITTED"
    user.has(100, 0)


@pytest.mark.parametrize("direction", ["in", "out"])
def test_BAL_003_of_two_that_exceed_the_balance_together_one_succeeds(
    shared: Stack, direction: str
) -> None:
    user = shared.user(100, 1) if direction == "in" else shared.user(1, 100)
    with ThreadPoolExecutor(2) as crowd:
        asked = [crowd.submit(user.move, direction, "60", api=api) for api in shared.apis]
        replies = sorted((task.result() for task in asked), key=lambda answer: answer.status)
    assert [answer.status for answer in replies] == [201, 422]
    assert replies[1].code == "INSUFFICIENT_BALANCE"
    user.has(*((40, 61) if direction == "in" else (61, 40)))


@pytest.mark.parametrize(("direction", "source"), [("in", "FUNDING"), ("out", "SPOT")])
def test_BAL_004_a_frozen_account_gives_nothing(shared: Stack, direction: str, source: str) -> None:
    gives_nothing(shared, direction, source, "FROZEN")


@pytest.mark.parametrize(("direction", "source"), [("in", "FUNDING"), ("out", "SPOT")])
def test_BAL_005_a_disabled_account_gives_nothing(
    shared: Stack, direction: str, source: str
) -> None:
    gives_nothing(shared, direction, source, "DISABLED")


def gives_nothing(shared: Stack, direction: str, source: str, status: str) -> None:
    """The account cannot be debited until it is active again."""
    user = shared.user(funding=100, spot=100)
    user.set_status(source, status)
    reply = user.move(direction, "10")
    assert (reply.status, reply.code) == (422, f"ACCOUNT_{status}")
    assert reply.body["state"] == "FAILED"
    user.has(100, 100)
    user.set_status(source, "ACTIVE")
    assert user.move(direction, "10").status == 201
    user.has(*((90, 110) if direction == "in" else (110, 90)))
