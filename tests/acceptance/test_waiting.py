"""How long a request waits for an end, and what other requests and metrics show meanwhile."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.acceptance.rig import Answer, Stack, User, transfer_body

pytestmark = pytest.mark.slow

SLACK_S = 5.0  # A busy machine may delay a reply, but no reply may come too early.


@contextmanager
def silent_core(stack: Stack) -> Iterator[None]:
    """Pause the core, so that its questions get no answer."""
    stack.core.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        stack.core.signal(signal.SIGCONT)


def timed(user: User, prefer: str | None) -> tuple[float, Answer]:
    headers = {} if prefer is None else {"Prefer": prefer}
    began_s = time.monotonic()
    path = "/api/v1/internal_transfer"
    reply = user.stack.api.call(
        "POST", path, transfer_body("in", "10"), user.token, headers=headers
    )
    return time.monotonic() - began_s, reply


@pytest.mark.parametrize(
    ("prefer", "wanted_s"),
    [(None, 0.5), ("wait=0", 0.0), ("wait=2", 2.0), ("respond-async, wait=1", 1.0)],
)
def test_a_request_waits_as_long_as_it_should_and_is_then_pending(
    stack: Stack, prefer: str | None, wanted_s: float
) -> None:
    stack.start_api()
    user = stack.user(funding=100)
    with silent_core(stack):
        took_s, reply = timed(user, prefer)
        assert (reply.status, reply.body["state"]) == (202, "PENDING")
        assert wanted_s <= took_s < wanted_s + SLACK_S
        assert user.state(reply.body["req_id"]) == "TARGET_PENDING", "a query shows its state"
    user.ends(reply.body["req_id"], "COMMITTED")
    user.has(90, 10)


def test_an_end_within_the_time_is_returned_at_once(stack: Stack) -> None:
    stack.start_api()
    user = stack.user(funding=100)
    stack.core.signal(signal.SIGSTOP)
    back = threading.Timer(1.0, stack.core.signal, (signal.SIGCONT,))
    back.start()
    took_s, reply = timed(user, "wait=10")
    back.join()
    assert (reply.status, reply.body["state"]) == (201, "COMMITTED")
    assert 1.0 <= took_s < 10.0


def test_metrics_show_what_rests_where_and_for_how_long(stack: Stack) -> None:
    api = stack.start_api()
    user = stack.user(funding=100)
    api.desk("GET", "/audit")
    labels = 'flow="internal_transfer",lane="core",state="TARGET_PENDING"'
    with silent_core(stack):
        req_id = timed(user, "wait=1")[1].body["req_id"]
        page = api.call("GET", "/metrics").body
    assert f"tidegate_backlog{{{labels}}} 1.0" in page
    [oldest] = [line for line in page.splitlines() if f"oldest_seconds{{{labels}}}" in line]
    assert 1.0 <= float(oldest.split()[-1]) < 1.0 + SLACK_S
    for line in ('tidegate_ring{lane="core"}', 'tidegate_conservation_gap{asset="USDT"} 0.0'):
        assert line in page, line
    user.ends(req_id, "COMMITTED")
    assert labels not in api.call("GET", "/metrics").body
