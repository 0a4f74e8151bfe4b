"""CRA: the API is killed with SIGKILL at a named moment and started again, and continues.

INIT and SOURCE_DONE are waypoints, in which nothing ever rests: what stands for «in» them are the
moments around the commit that writes them.
"""

import pytest
from ulid import ULID

from tests.acceptance.rig import Stack, User
from tests.acceptance.scenes import CID, killed_at

pytestmark = pytest.mark.slow

AFTER = {"in": (90, 110), "out": (110, 90)}


def rests(user: User, state: str) -> str:
    """Check the state in which the killed process left the only transfer, and return its id."""
    [(id_, found, _)] = user.transfers()
    assert found == state
    return str(ULID.from_uuid(id_))


def recovers(user: User, req_id: str, direction: str, state: str) -> None:
    """A new process completes it by itself. Then the client repeats the request with its cid."""
    stack = user.stack
    stack.start_api()
    user.ends(req_id, state)
    reply = user.move(direction, "10", cid=CID)
    assert reply.status == (200 if state == "COMMITTED" else 422)
    assert (reply.body["req_id"], reply.body["duplicate"]) == (req_id, True)
    assert len(user.transfers()) == 1
    user.has(*(AFTER[direction] if state == "COMMITTED" else (100, 100)))
    [(answers, versions)] = stack.rows(
        "SELECT count(*), count(DISTINCT version) FROM history WHERE transfer_id = %s",
        ULID.from_str(req_id).to_uuid(),
    )
    assert answers == versions


@pytest.mark.parametrize("direction", ["in", "out"])
def test_CRA_001_killed_before_the_creation_is_committed_nothing_exists(
    stack: Stack, direction: str
) -> None:
    user = killed_at(stack, "before creation", direction)
    assert user.transfers() == []
    user.has(100, 100)
    stack.start_api()
    reply = user.move(direction, "10", cid=CID)
    assert (reply.status, reply.body["duplicate"]) == (201, False)
    user.has(*AFTER[direction])


@pytest.mark.parametrize(
    ("direction", "state"), [("in", "TARGET_PENDING"), ("out", "SOURCE_PENDING")]
)
def test_CRA_001_killed_right_after_the_creation_it_goes_on(
    stack: Stack, direction: str, state: str
) -> None:
    user = killed_at(stack, "after creation", direction)
    recovers(user, rests(user, state), direction, "COMMITTED")


def test_CRA_002_killed_before_the_source_is_called_the_withdraw_is_tried_again(
    stack: Stack,
) -> None:
    user = killed_at(stack, "before debit", "out")
    user.has(100, 100)
    recovers(user, rests(user, "SOURCE_PENDING"), "out", "COMMITTED")


def test_CRA_003_killed_after_the_source_was_called_it_is_not_debited_again(stack: Stack) -> None:
    user = killed_at(stack, "after debit", "out")
    user.has_in_flight(100, 90, 10)
    recovers(user, rests(user, "SOURCE_PENDING"), "out", "COMMITTED")


def test_CRA_003_killed_after_the_source_refused_the_refusal_stands(stack: Stack) -> None:
    """Even if the account could pay when it is asked again."""
    user = killed_at(stack, "after debit", "out", closed="SPOT", lease_s=3.0)
    req_id = rests(user, "SOURCE_PENDING")
    stack.start_api()
    user.set_status("SPOT", "ACTIVE")
    user.ends(req_id, "FAILED")
    user.has(100, 100)


def test_CRA_004_killed_between_the_sources_done_and_its_record(stack: Stack) -> None:
    user = killed_at(stack, "before record of COMMITTED", "out")
    user.has_in_flight(100, 90, 10)
    recovers(user, rests(user, "SOURCE_PENDING"), "out", "COMMITTED")


def test_CRA_004_killed_right_after_the_sources_done_is_recorded(stack: Stack) -> None:
    """FUNDING's debit is recorded at creation: the history contains SOURCE_DONE, nothing else."""
    user = killed_at(stack, "after creation", "in")
    req_id = rests(user, "TARGET_PENDING")
    user.has_in_flight(90, 100, 10)
    [(waypoints,)] = stack.rows(
        "SELECT waypoints FROM history WHERE verb = 'debit' AND flow = %s", "internal_transfer"
    )
    assert waypoints.split() == ["SOURCE_PENDING", "SOURCE_DONE"]
    recovers(user, req_id, "in", "COMMITTED")


def test_CRA_004_killed_right_after_the_cores_done_is_recorded(stack: Stack) -> None:
    """SOURCE_DONE and FUNDING's credit are one commit: after it, nothing remains to be done."""
    user = killed_at(stack, "after record of COMMITTED", "out")
    recovers(user, rests(user, "COMMITTED"), "out", "COMMITTED")


@pytest.mark.parametrize(
    ("moment", "spot"),
    [("before credit", 100), ("after credit", 110), ("before record of COMMITTED", 110)],
)
def test_CRA_005_killed_while_the_target_is_asked_it_is_credited_once(
    stack: Stack, moment: str, spot: int
) -> None:
    user = killed_at(stack, moment, "in")
    user.has_in_flight(90, spot, 110 - spot)
    recovers(user, rests(user, "TARGET_PENDING"), "in", "COMMITTED")


@pytest.mark.parametrize(
    ("moment", "spot"),
    [
        ("after record of COMPENSATING", 90),
        ("before refund", 90),
        ("after refund", 100),
        ("before record of ROLLED_BACK", 100),
    ],
)
def test_CRA_006_killed_while_the_core_is_refunded_it_is_refunded_once(
    stack: Stack, moment: str, spot: int
) -> None:
    user = killed_at(stack, moment, "out", closed="FUNDING")
    user.has_in_flight(100, spot, 100 - spot)
    recovers(user, rests(user, "COMPENSATING"), "out", "ROLLED_BACK")


def test_CRA_006_killed_while_the_ledger_is_refunded_it_is_refunded_once(stack: Stack) -> None:
    """The target's refusal and FUNDING's refund are one commit, which does not happen here."""
    user = killed_at(stack, "before record of ROLLED_BACK", "in", closed="SPOT")
    user.has_in_flight(90, 100, 10)
    recovers(user, rests(user, "TARGET_PENDING"), "in", "ROLLED_BACK")
