"""Processes with and without one flow on one store, under load: upgraded, killed, downgraded."""

import signal
import time
from collections.abc import Callable

from tests.acceptance.program import ADDED
from tests.acceptance.rig import UNIT, Child, Stack, User, until
from tests.conftest import SCHEMA
from tests.forked import Forked
from tidegate.store.migrate import migrate

COUNT = 120
WAIT_S = 90.0
OPEN = "SELECT count(*) FROM transfers WHERE lane IS NOT NULL AND flow = 'added'"


def program(stack: Stack, user: User) -> Child:
    log = stack._log("program")
    words = [stack.database, stack.address, str(user.owner), str(COUNT)]
    child = Child(Forked(["tests.acceptance.program", *words], log), log)
    stack.children.append(child)
    return child


def stopped_with_work(stack: Stack, child: Child) -> bool:
    """Pause it. Let it continue if it has no open transfers."""
    child.signal(signal.SIGSTOP)
    if stack.rows(OPEN) != [(0,)]:
        return True
    child.signal(signal.SIGCONT)
    return False


def load(user: User, until_: Callable[[], bool]) -> int:
    """Make transfers of a flow that all versions know, one after the other, until it is done."""
    made, end_s = 0, time.monotonic() + WAIT_S
    while not until_():
        assert time.monotonic() < end_s, "waited in vain"
        reply = user.move("in" if made % 2 else "out", "1")
        assert reply.status in (200, 201), reply
        made += 1
    return made


def test_a_flow_is_added_and_taken_away_while_others_work(stack: Stack) -> None:
    api, worker = stack.start_api(audit_s=0.5), stack.start_worker()
    ours, theirs = stack.user(funding=100, spot=100), stack.user(funding=100, spot=100)
    migrate(stack.database, SCHEMA, [ADDED])

    # Upgrade: a process that knows the flow runs beside two that do not.
    newer = program(stack, theirs)
    assert load(ours, lambda: "ended 20" in newer.output()) > 0

    # Downgrade: it is killed with open transfers. The other processes do not claim them.
    until(lambda: stopped_with_work(stack, newer), WAIT_S)
    newer.kill()
    [(left,)] = stack.rows(OPEN)
    assert left > 0
    seen = stack.rows("SELECT id, version FROM transfers WHERE flow = 'added' ORDER BY id")
    pause_s = time.monotonic() + 2.0
    assert load(ours, lambda: time.monotonic() > pause_s) > 0
    assert stack.rows(OPEN) == [(left,)]
    assert stack.rows("SELECT id, version FROM transfers WHERE flow = 'added' ORDER BY id") == seen

    # Upgrade again: it continues where it was killed.
    again = program(stack, theirs)
    assert load(ours, lambda: again.popen.poll() is not None) > 0
    assert again.popen.returncode == 0, again.output()

    assert api.popen.poll() is None, api.output()
    assert worker.popen.poll() is None, worker.output()
    until(lambda: api.desk("GET", "/audit").body["not_judged"] == {"added": COUNT})
    report = api.desk("GET", "/audit").body
    assert (report["ok"], report["halted"], report["violations"]) == (True, False, [])
    assert report["assets"]["USDT"]["gap"] == "0"
    assert stack.rows(OPEN) == [(0,)]
    for child in (api, worker):
        assert "died" not in child.output()
    theirs.has(100, 100)
    assert sum(ours.held()) == 200 * UNIT
