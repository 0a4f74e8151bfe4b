"""MON: the alerts, their levels, and the halts.

An alert is written to the log and to the webhook; CRITICAL and WARNING are the levels of the log.
"""

import json
import time
from collections.abc import Callable
from uuid import uuid4

import pytest
from ulid import ULID

from tests.acceptance.rig import USDT, Api, Stack, User, transfer_body, until
from tests.acceptance.scenes import compensating, crowded_out, killed_at
from tests.acceptance.webhook import Webhook, listening
from tidegate.core.flow import Verb
from tidegate.core.kind import Party
from tidegate.core.transfer import Question
from tidegate.engine.clock_repair import FAR_AHEAD_S
from tidegate.engine.gate import CORE

pytestmark = pytest.mark.slow

NO_AUDIT_S = 3600.0  # So rare that no audit runs in a test.


def logged(api: Api, text: str) -> list[tuple[str, str]]:
    """Level and event code of the log lines whose cause contains this text."""
    lines = [line for line in api.output().splitlines() if line.startswith("{")]
    entries = [json.loads(line) for line in lines]
    return [(line["level"], line["event"]) for line in entries if text in line.get("cause", "")]


def test_MON_001_over_a_minute_in_target_pending_is_critical(stack: Stack) -> None:
    with listening() as webhook:
        stack.start_api(alert_webhook=webhook.url)
        user = stack.user(funding=100)
        stack.core.kill()
        made = [user.move("in", "10", wait_s=0).body["req_id"] for _ in range(2)]
        for req_id, age_s in zip(made, (61, 50), strict=True):
            stack.rows(
                "UPDATE transfers SET created_at = now() - %s * interval '1 second',"
                " updated_at = now() - %s * interval '1 second' WHERE id = %s",
                age_s,
                age_s,
                ULID.from_str(req_id).to_uuid(),
            )
        [alert] = until(lambda: webhook.named("MON-001"))
        assert (alert["alarm"], alert["state"]) == ("CRITICAL", "TARGET_PENDING")
        assert alert["transfer"] == made[0]
        assert "1 transfer has been in TARGET_PENDING" in alert["cause"], "the other is not so old"
        assert (alert["code"], alert["age_s"] > 60) == ("target_pending", True)
        [alert] = until(lambda: webhook.coded("lane_unreachable"))
        assert (alert["alarm"], alert["lane"]) == ("PAGE", "core")
        assert alert["cause"].startswith("system core is unreachable: ")
        shown = until(lambda: user.shown(made[0])["retries"] >= 2 and user.shown(made[0]))
        assert shown["error"].startswith("unreachable: "), "the row records why it waits"
        [(level, _)] = logged(stack.api, "MON-001")
        assert level == "critical"
    assert user.state(made[0]) == "TARGET_PENDING", "an alarm is no answer"
    stack.start_core()
    for req_id in made:
        user.ends(req_id, "COMMITTED")
        assert (user.shown(req_id)["retries"], user.shown(req_id)["error"]) == (0, None)
    user.has(80, 20)


def test_MON_002_a_refund_that_failed_three_times_is_critical(stack: Stack) -> None:
    user, req_id = compensating(stack)
    with listening() as webhook, crowded_out(user):
        stack.start_api(alert_webhook=webhook.url, audit_s=NO_AUDIT_S)
        [alert] = until(lambda: webhook.named("MON-002"))
        assert (alert["alarm"], alert["state"]) == ("CRITICAL", "COMPENSATING")
        assert alert["transfer"] == req_id
        assert int(alert["cause"].split()[-2]) >= 3
        assert user.shown(req_id)["retries"] >= 3
    assert logged(stack.api, "MON-002")[0][0] == "critical"
    user.ends(req_id, "ROLLED_BACK")
    user.has(100, 100)


def a_row(user: User, change: int) -> None:
    user.stack.rows(
        "UPDATE ledger_accounts SET available = available + %s WHERE owner = %s AND book = %s",
        change,
        user.owner,
        "FUNDING",
    )


def the_core(user: User, change: int) -> None:
    """An operation without a transfer. Its reversal is one, too, so it cannot repair the core."""
    verb, party = Verb.CREDIT, Party(CORE, "SPOT", user.owner)
    question = Question(uuid4(), 0, verb, party, USDT, change)
    user.stack.ask_core(lambda core: core.ask([question]))


def halted(api: Api, webhook: Webhook) -> None:
    """A CRITICAL alert, and a halt of all transfers."""
    alert = until(lambda: webhook.named("audit"))[0]
    assert alert["alarm"] in ("CRITICAL", "HALT")
    assert {level for level, _ in logged(api, "the audit found")} == {"critical"}
    assert api.call("GET", "/readyz").status == 503
    report = api.desk("GET", "/audit").body
    assert (report["ok"], report["halted"]) == (False, True)


@pytest.mark.parametrize("spoil", [a_row, the_core])
def test_MON_003_books_that_do_not_agree_are_critical_and_halt_the_service(
    stack: Stack, spoil: Callable[[User, int], None]
) -> None:
    with listening() as webhook:
        api = stack.start_api(alert_webhook=webhook.url, audit_s=0.3)
        user = stack.user(funding=100, spot=100)
        assert user.move("in", "10").status == 201
        time.sleep(1.0)
        assert webhook.named("audit") == [], "a false alarm"
        spoil(user, 1)
        halted(api, webhook)
    reply = user.move("in", "10")
    assert (reply.status, reply.code, reply.body["retryable"]) == (503, "HALTED", True)
    assert len(user.transfers()) == 1


def test_MON_003_what_is_under_way_stops_until_an_operator_resumes(stack: Stack) -> None:
    user = killed_at(stack, "after creation", "in")
    due = "UPDATE transfers SET due_at = now() + %s * interval '1 second' WHERE lane IS NOT NULL"
    stack.rows(due, FAR_AHEAD_S - 1)  # Later, and it is taken for the work of a wrong clock.
    a_row(user, 1)
    with listening() as webhook:
        api = stack.start_api(alert_webhook=webhook.url, audit_s=0.2)
        halted(api, webhook)
    stack.rows(due, 0)
    time.sleep(1.0)
    [(id_, state, _)] = user.transfers()
    assert state == "TARGET_PENDING"
    assert api.desk("POST", "/resume", {"reason": " "}).status == 400, "it needs a reason"
    a_row(user, -1)
    assert api.desk("POST", "/resume", {"reason": "the row was set right"}).status == 200
    user.ends(str(ULID.from_uuid(id_)), "COMMITTED")
    user.has(90, 110)
    assert user.move("in", "1").status == 201
    assert api.desk("GET", "/audit").body["ok"]


def test_MON_004_too_many_transfers_of_one_user_are_a_warning(shared: Stack) -> None:
    busy, brisk = shared.user(funding=100), shared.user(funding=100)
    for user, count in ((busy, 31), (brisk, 29)):
        batch = {"transfers": [transfer_body("in", "1")] * count}
        replies = shared.api.call("POST", "/api/v1/internal_transfers", batch, user.token)
        assert {item["status"] for item in replies.body["results"]} <= {201, 202}

    def alerts_of(user: User) -> list[tuple[str, str]]:
        return [
            line for api in shared.apis for line in logged(api, f"MON-004: owner {user.owner} ")
        ]

    until(lambda: alerts_of(busy))
    assert [level for level, _ in alerts_of(busy)] == ["warning"], "once, although two APIs run"
    assert alerts_of(brisk) == []
