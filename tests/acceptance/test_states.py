"""FSM: the states of a transfer, read from its history, waypoints included."""

import signal
import time

import pytest

from tests.acceptance.rig import Stack, until
from tests.acceptance.scenes import compensating, crowded_out

START = ["INIT", "SOURCE_PENDING"]
HALFWAY = [*START, "SOURCE_DONE", "TARGET_PENDING"]


def test_FSM_001_funding_to_spot_walks_every_state_to_committed(shared: Stack) -> None:
    user = shared.user(funding=100)
    reply = user.move("in", "10")
    assert (reply.status, reply.body["state"]) == (201, "COMMITTED")
    assert shared.api.path(reply.body["req_id"]) == [*HALFWAY, "COMMITTED"]
    user.has(90, 10)


def test_FSM_002_spot_to_funding_walks_every_state_to_committed(shared: Stack) -> None:
    user = shared.user(funding=1, spot=100)
    reply = user.move("out", "10")
    assert (reply.status, reply.body["state"]) == (201, "COMMITTED")
    assert shared.api.path(reply.body["req_id"]) == [*HALFWAY, "COMMITTED"]
    user.has(11, 90)


@pytest.mark.parametrize("direction", ["in", "out"])
def test_FSM_003_a_source_that_refuses_leads_to_failed(shared: Stack, direction: str) -> None:
    user = shared.user(funding=100, spot=100)
    reply = user.move(direction, "101")
    assert (reply.status, reply.body["state"]) == (422, "FAILED")
    assert shared.api.path(reply.body["req_id"]) == [*START, "FAILED"]
    user.has(100, 100)


@pytest.mark.parametrize(("direction", "closed"), [("in", "SPOT"), ("out", "FUNDING")])
def test_FSM_004_a_target_that_refuses_leads_to_rolled_back(
    shared: Stack, direction: str, closed: str
) -> None:
    user = shared.user(funding=100, spot=100)
    user.set_status(closed, "DISABLED")
    reply = user.move(direction, "10")
    assert (reply.status, reply.code) == (422, "ACCOUNT_DISABLED")
    path = [*HALFWAY, "COMPENSATING", "ROLLED_BACK"]
    assert shared.api.path(reply.body["req_id"]) == path
    user.has(100, 100)


@pytest.mark.slow
def test_FSM_005_a_target_that_does_not_answer_is_asked_again_for_ever(stack: Stack) -> None:
    """The core is paused, not dead: connections are accepted, but never answered."""
    stack.start_api()
    user = stack.user(funding=100)
    stack.core.signal(signal.SIGSTOP)
    reply = user.move("in", "10", wait_s=0)
    assert (reply.status, reply.body["state"]) == (202, "PENDING")
    req_id = reply.body["req_id"]
    until(lambda: stack.api.call("GET", "/readyz").body["lanes"]["core"] == "closed")
    attempts = user.shown(req_id)["attempts"]
    until(lambda: user.shown(req_id)["attempts"] > attempts)
    assert user.state(req_id) == "TARGET_PENDING"
    assert stack.api.path(req_id) == HALFWAY
    assert stack.rows("SELECT book FROM ledger_operations WHERE verb = 'refund'") == []
    stack.core.signal(signal.SIGCONT)
    user.ends(req_id, "COMMITTED")
    assert stack.api.path(req_id) == [*HALFWAY, "COMMITTED"]
    user.has(90, 10)


@pytest.mark.slow
def test_FSM_006_a_refund_without_an_answer_is_tried_again_for_ever(stack: Stack) -> None:
    user, req_id = compensating(stack)
    stack.core.kill()
    stack.start_api()
    until(lambda: user.shown(req_id)["attempts"] >= 3)
    assert user.state(req_id) == "COMPENSATING"
    stack.start_core()
    user.ends(req_id, "ROLLED_BACK")
    user.has(100, 100)
    assert stack.api.path(req_id) == [*HALFWAY, "COMPENSATING", "ROLLED_BACK"]


@pytest.mark.slow
def test_FSM_006_a_refused_refund_stays_and_is_tried_again(stack: Stack) -> None:
    """A rejected refund is not an end state: the owner's money is still in flight."""
    user, req_id = compensating(stack)
    with crowded_out(user):
        stack.start_api(audit_s=3600.0)  # An audit would report the filling of the core account.
        until(lambda: user.shown(req_id)["retries"] >= 3)
        assert user.state(req_id) == "COMPENSATING"
        assert user.shown(req_id)["error"] == "BALANCE_OVERFLOW"
    began_s = time.monotonic()
    user.ends(req_id, "ROLLED_BACK")
    assert time.monotonic() - began_s < 15
    user.has(100, 100)
    path = stack.api.path(req_id)
    assert path[: len(HALFWAY)] == HALFWAY
    assert set(path[len(HALFWAY) : -1]) == {"COMPENSATING"}
    assert path[-1] == "ROLLED_BACK"
