"""Two people resolve a stuck transfer: over HTTP and by the command line, on the real service.

The engine does not ask the question itself in this time, so that two people answer it.
"""

import json
from typing import Any, Protocol

import pytest
from ulid import ULID

from tests.acceptance.rig import UNIT, Stack, User, bearer, until
from tests.acceptance.scenes import compensating, crowded_out, killed_at
from tests.running import tidegate
from tests.token_clients import Bearer
from tidegate.engine.clock_repair import FAR_AHEAD_S

pytestmark = pytest.mark.slow

OLGA = bearer("olga", "operator", "approver")  # The proposer cannot confirm, even as an approver.
OTTO = bearer("otto", "approver", "auditor")
REASON, EVIDENCE = "settled by hand", {"ticket": "OPS-17"}
DUE = "UPDATE transfers SET due_at = now() + %s * interval '1 second' WHERE lane IS NOT NULL"
NOT_SOON_S = FAR_AHEAD_S - 1  # A later due time would be repaired, as set by a wrong clock.
NEVER_S = 3600.0


class OperatorAccess(Protocol):
    """How operators call a Tidegate: over HTTP or by the command line."""

    def propose(self, stack: Stack, req_id: str, kind: str) -> int: ...
    def confirm(self, stack: Stack, number: int, auth: Bearer) -> dict[str, Any]: ...
    def refused(self, stack: Stack, number: int, auth: Bearer) -> str: ...
    def named(self, stack: Stack, req_id: str) -> bool:
        """Check that the displayed history names both people."""


class ByHttp:
    def propose(self, stack: Stack, req_id: str, kind: str) -> int:
        version = stack.api.desk("GET", f"/transfers/{req_id}").body["transfer"]["version"]
        body = {"version": version, "answer": kind, "reason": REASON, "evidence": EVIDENCE}
        path = f"/api/v1/operator/transfers/{req_id}/resolve"
        reply = stack.api.call("POST", path, body, OLGA)
        assert (reply.status, reply.body["req_id"]) == (201, req_id)
        return int(reply.body["resolution"])

    def _confirm(self, stack: Stack, number: int, auth: Bearer) -> Any:
        return stack.api.call("POST", f"/api/v1/operator/resolutions/{number}/confirm", auth=auth)

    def confirm(self, stack: Stack, number: int, auth: Bearer) -> dict[str, Any]:
        reply = self._confirm(stack, number, auth)
        assert reply.status == 200, reply
        return dict(reply.body)

    def refused(self, stack: Stack, number: int, auth: Bearer) -> str:
        reply = self._confirm(stack, number, auth)
        assert reply.status in (400, 403), reply
        return f"{reply.code}: {reply.body['detail']}"

    def named(self, stack: Stack, req_id: str) -> bool:
        return bool(by_hand(stack, req_id)["actor"] == "olga and otto")


class ByTyping:
    def _type(self, stack: Stack, auth: Bearer, *words: str) -> tuple[int, str, str]:
        reply = tidegate(*words, env={"TIDEGATE_TOKEN": str(auth), "TIDEGATE_URL": stack.api.url})
        return reply.returncode, reply.stdout, reply.stderr

    def propose(self, stack: Stack, req_id: str, kind: str) -> int:
        evidence = [f"--evidence={name}={value}" for name, value in EVIDENCE.items()]
        words = ("resolve", req_id, "--answer", kind, "--reason", REASON, *evidence)
        code, out, err = self._type(stack, OLGA, *words, "-o", "json")
        assert code == 0, err
        return int(json.loads(out)["resolution"])

    def confirm(self, stack: Stack, number: int, auth: Bearer) -> dict[str, Any]:
        code, out, err = self._type(stack, auth, "confirm", str(number), "-o", "json")
        assert code == 0, err
        return dict(json.loads(out))

    def refused(self, stack: Stack, number: int, auth: Bearer) -> str:
        code, out, err = self._type(stack, auth, "confirm", str(number))
        assert (code, out) == (1, "")
        return err.removeprefix("tidegate: ").strip()

    def named(self, stack: Stack, req_id: str) -> bool:
        code, out, err = self._type(stack, OTTO, "show", req_id)
        assert code == 0, err
        assert ", by olga and otto" in out, out
        return True


def by_hand(stack: Stack, req_id: str) -> dict[str, Any]:
    """The only answer in the history that people gave."""
    life = stack.api.desk("GET", f"/transfers/{req_id}").body
    [entry] = [entry for entry in life["history"] if entry["actor"]]
    return dict(entry)


@pytest.fixture(params=[ByHttp(), ByTyping()], ids=["http", "cli"])
def access(request: pytest.FixtureRequest) -> OperatorAccess:
    chosen: OperatorAccess = request.param
    return chosen


def left_open(stack: Stack, moment: str) -> tuple[User, str]:
    """A user with a transfer of 10 from FUNDING to SPOT whose second question is open."""
    user = killed_at(stack, moment, "in")
    stack.rows(DUE, NOT_SOON_S)
    stack.start_api()
    [(id_, state, _)] = user.transfers()
    assert state == "TARGET_PENDING"
    return user, str(ULID.from_uuid(id_))


def by_two(stack: Stack, access: OperatorAccess, req_id: str, kind: str) -> dict[str, Any]:
    before = stack.api.desk("GET", f"/transfers/{req_id}").body["transfer"]
    number = access.propose(stack, req_id, kind)
    assert access.refused(stack, number, OLGA) == "FORBIDDEN: a second person must confirm"
    assert stack.api.desk("GET", f"/transfers/{req_id}").body["transfer"] == before, (
        "one person is not enough"
    )
    reply = access.confirm(stack, number, OTTO)
    assert reply["resolution"] == number
    assert access.named(stack, req_id)
    assert "closed" in access.refused(stack, number, OTTO), "what is carried out is over"
    return reply


def clean(stack: Stack) -> None:
    report = stack.api.desk("GET", "/audit").body
    assert (report["ok"], report["halted"], report["violations"]) == (True, False, [])


def test_a_rejection_by_two_people_rolls_the_transfer_back(
    stack: Stack, access: OperatorAccess
) -> None:
    user, req_id = left_open(stack, "after creation")
    reply = by_two(stack, access, req_id, "rejected")
    assert reply["outcome"] == f"rejected: {REASON}"
    assert by_hand(stack, req_id)["evidence"] == EVIDENCE
    user.ends(req_id, "ROLLED_BACK")
    user.has(100, 100)
    clean(stack)


def test_the_recorded_answer_of_the_core_overrides_two_people(
    stack: Stack, access: OperatorAccess
) -> None:
    user, req_id = left_open(stack, "after credit")
    assert by_two(stack, access, req_id, "rejected")["outcome"] == "done"
    user.ends(req_id, "COMMITTED")
    user.has(90, 110)
    clean(stack)


def test_a_confirmation_by_two_people_completes_it(stack: Stack, access: OperatorAccess) -> None:
    user, req_id = left_open(stack, "after credit")
    assert by_two(stack, access, req_id, "done")["outcome"] == "done"
    assert by_hand(stack, req_id)["evidence"] == EVIDENCE | {"reason": REASON}
    user.ends(req_id, "COMMITTED")
    user.has(90, 110)
    clean(stack)


def test_a_refused_refund_goes_to_suspense_by_two_people(
    stack: Stack, access: OperatorAccess
) -> None:
    user, req_id = compensating(stack)
    with crowded_out(user):
        # The account is filled by an operation without a transfer, which an audit would report.
        stack.start_api(retry_first_s=0.2, audit_s=NEVER_S)
        until(lambda: user.shown(req_id)["error"] == "BALANCE_OVERFLOW")
        number = access.propose(stack, req_id, "suspense")
        asked = user.shown(req_id)["version"]
        # Before the second person confirms, the refund is tried and refused again.
        until(lambda: user.shown(req_id)["version"] >= asked + 2)
        assert "second person" in access.refused(stack, number, OLGA)
        assert access.confirm(stack, number, OTTO)["outcome"] == f"rejected: {REASON}"
        user.ends(req_id, "ROLLED_BACK")
        assert access.named(stack, req_id)
    suspense = "SELECT available FROM ledger_accounts WHERE owner = %s AND book = 'SUSPENSE'"
    assert stack.rows(suspense, user.owner) == [(10 * UNIT,)]
    user.has_in_flight(100, 90, 10)  # The money in suspense is in neither account.


def test_only_a_refund_can_go_to_suspense(stack: Stack) -> None:
    _, req_id = left_open(stack, "after creation")
    body = {"version": 1, "answer": "suspense", "reason": REASON, "evidence": EVIDENCE}
    reply = stack.api.call("POST", f"/api/v1/operator/transfers/{req_id}/resolve", body, OLGA)
    assert (reply.status, reply.code) == (400, "INVALID_REQUEST")
