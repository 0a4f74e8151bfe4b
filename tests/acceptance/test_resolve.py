"""Two people end what no system would: over HTTP and as typed, against the real service.

The question is kept from being asked by itself meanwhile, so that it is the people who answer.
"""

import json
from typing import Any, Protocol

import pytest
from ulid import ULID

from tests.acceptance.rig import UNIT, Stack, User, bearer, until
from tests.acceptance.scenes import compensating, crowded_out, killed_at
from tests.running import tidegate
from tests.token_clients import Bearer
from tidegate.engine.clock_repair import LATE_S

pytestmark = pytest.mark.slow

OLGA = bearer("olga", "operator", "approver")  # Who proposes may not confirm, whatever else she is.
OTTO = bearer("otto", "approver", "auditor")
REASON, EVIDENCE = "settled by hand", {"ticket": "OPS-17"}
DUE = "UPDATE transfers SET due_at = now() + %s * interval '1 second' WHERE lane IS NOT NULL"
NOT_SOON_S = LATE_S - 1  # What is due later than that is taken for the work of a wrong clock.
NEVER_S = 3600.0


class Hands(Protocol):
    """How people reach a Tidegate."""

    def propose(self, stack: Stack, req_id: str, kind: str) -> int: ...
    def confirm(self, stack: Stack, number: int, who: Bearer) -> dict[str, Any]: ...
    def refused(self, stack: Stack, number: int, who: Bearer) -> str: ...
    def named(self, stack: Stack, req_id: str) -> bool:
        """The transfer's life as it is shown names both."""


class ByHttp:
    def propose(self, stack: Stack, req_id: str, kind: str) -> int:
        version = stack.api.desk("GET", f"/transfers/{req_id}").body["transfer"]["version"]
        body = {"version": version, "answer": kind, "reason": REASON, "evidence": EVIDENCE}
        path = f"/api/v1/operator/transfers/{req_id}/resolve"
        said = stack.api.call("POST", path, body, OLGA)
        assert (said.status, said.body["req_id"]) == (201, req_id)
        return int(said.body["resolution"])

    def _confirm(self, stack: Stack, number: int, who: Bearer) -> Any:
        return stack.api.call("POST", f"/api/v1/operator/resolutions/{number}/confirm", who=who)

    def confirm(self, stack: Stack, number: int, who: Bearer) -> dict[str, Any]:
        said = self._confirm(stack, number, who)
        assert said.status == 200, said
        return dict(said.body)

    def refused(self, stack: Stack, number: int, who: Bearer) -> str:
        said = self._confirm(stack, number, who)
        assert said.status in (400, 403), said
        return f"{said.code}: {said.body['detail']}"

    def named(self, stack: Stack, req_id: str) -> bool:
        return bool(by_hand(stack, req_id)["actor"] == "olga and otto")


class ByTyping:
    def _type(self, stack: Stack, who: Bearer, *words: str) -> tuple[int, str, str]:
        said = tidegate(*words, env={"TIDEGATE_TOKEN": str(who), "TIDEGATE_URL": stack.api.url})
        return said.returncode, said.stdout, said.stderr

    def propose(self, stack: Stack, req_id: str, kind: str) -> int:
        evidence = [f"--evidence={name}={value}" for name, value in EVIDENCE.items()]
        words = ("resolve", req_id, "--answer", kind, "--reason", REASON, *evidence)
        code, out, err = self._type(stack, OLGA, *words, "-o", "json")
        assert code == 0, err
        return int(json.loads(out)["resolution"])

    def confirm(self, stack: Stack, number: int, who: Bearer) -> dict[str, Any]:
        code, out, err = self._type(stack, who, "confirm", str(number), "-o", "json")
        assert code == 0, err
        return dict(json.loads(out))

    def refused(self, stack: Stack, number: int, who: Bearer) -> str:
        code, out, err = self._type(stack, who, "confirm", str(number))
        assert (code, out) == (1, "")
        return err.removeprefix("tidegate: ").strip()

    def named(self, stack: Stack, req_id: str) -> bool:
        code, out, err = self._type(stack, OTTO, "show", req_id)
        assert code == 0, err
        assert ", by olga and otto" in out, out
        return True


def by_hand(stack: Stack, req_id: str) -> dict[str, Any]:
    """The one answer in the history that people gave."""
    life = stack.api.desk("GET", f"/transfers/{req_id}").body
    [entry] = [entry for entry in life["history"] if entry["actor"]]
    return dict(entry)


@pytest.fixture(params=[ByHttp(), ByTyping()], ids=["http", "cli"])
def hands(request: pytest.FixtureRequest) -> Hands:
    chosen: Hands = request.param
    return chosen


def left_open(stack: Stack, moment: str) -> tuple[User, str]:
    """A user whose transfer of 10 from FUNDING to SPOT has its second question open."""
    user = killed_at(stack, moment, "in")
    stack.rows(DUE, NOT_SOON_S)
    stack.start_api()
    [(id_, state, _)] = user.transfers()
    assert state == "TARGET_PENDING"
    return user, str(ULID.from_uuid(id_))


def by_two(stack: Stack, hands: Hands, req_id: str, kind: str) -> dict[str, Any]:
    before = stack.api.desk("GET", f"/transfers/{req_id}").body["transfer"]
    number = hands.propose(stack, req_id, kind)
    assert hands.refused(stack, number, OLGA) == "FORBIDDEN: a second person must confirm"
    assert stack.api.desk("GET", f"/transfers/{req_id}").body["transfer"] == before, "one word"
    said = hands.confirm(stack, number, OTTO)
    assert said["resolution"] == number
    assert hands.named(stack, req_id)
    assert "closed" in hands.refused(stack, number, OTTO), "what is carried out is over"
    return said


def clean(stack: Stack) -> None:
    report = stack.api.desk("GET", "/audit").body
    assert (report["ok"], report["halted"], report["violations"]) == (True, False, [])


def test_a_no_of_two_people_sends_the_money_home(stack: Stack, hands: Hands) -> None:
    user, req_id = left_open(stack, "after birth")
    said = by_two(stack, hands, req_id, "rejected")
    assert said["outcome"] == f"rejected: {REASON}"
    assert by_hand(stack, req_id)["evidence"] == EVIDENCE
    user.ends(req_id, "ROLLED_BACK")
    user.has(100, 100)
    clean(stack)


def test_a_core_that_had_done_it_is_believed_more_than_two_people(
    stack: Stack, hands: Hands
) -> None:
    user, req_id = left_open(stack, "after credit")
    assert by_two(stack, hands, req_id, "rejected")["outcome"] == "done"
    user.ends(req_id, "COMMITTED")
    user.has(90, 110)
    clean(stack)


def test_a_yes_of_two_people_ends_it(stack: Stack, hands: Hands) -> None:
    user, req_id = left_open(stack, "after credit")
    assert by_two(stack, hands, req_id, "done")["outcome"] == "done"
    assert by_hand(stack, req_id)["evidence"] == EVIDENCE | {"reason": REASON}
    user.ends(req_id, "COMMITTED")
    user.has(90, 110)
    clean(stack)


def test_a_refused_refund_goes_to_suspense_by_two_people(stack: Stack, hands: Hands) -> None:
    user, req_id = compensating(stack)
    with crowded_out(user):
        # What crowds the account is no transfer, which an audit would not overlook.
        stack.start_api(retry_first_s=0.2, audit_s=NEVER_S)
        until(lambda: user.shown(req_id)["error"] == "BALANCE_OVERFLOW")
        number = hands.propose(stack, req_id, "suspense")
        asked = user.shown(req_id)["version"]
        # The second person takes a while; the refund is tried and refused again meanwhile.
        until(lambda: user.shown(req_id)["version"] >= asked + 2)
        assert "second person" in hands.refused(stack, number, OLGA)
        assert hands.confirm(stack, number, OTTO)["outcome"] == f"rejected: {REASON}"
        user.ends(req_id, "ROLLED_BACK")
        assert hands.named(stack, req_id)
    suspense = "SELECT available FROM ledger_accounts WHERE owner = %s AND book = 'SUSPENSE'"
    assert stack.rows(suspense, user.owner) == [(10 * UNIT,)]
    user.has_in_flight(100, 90, 10)  # What is in suspense is in neither of the two.


def test_only_a_refund_can_go_to_suspense(stack: Stack) -> None:
    _, req_id = left_open(stack, "after birth")
    body = {"version": 1, "answer": "suspense", "reason": REASON, "evidence": EVIDENCE}
    said = stack.api.call("POST", f"/api/v1/operator/transfers/{req_id}/resolve", body, OLGA)
    assert (said.status, said.code) == (400, "INVALID_REQUEST")
