"""How long a question may stay open: deadlines, pauses between retries, and pages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.samples import CONTEXT, NO, REVIEWED, TIMEOUT, YES, ask_of
from tests.core.samples import resting as resting_in
from tidegate.core.answers import Alarm, Done, Rejected, Unknown
from tidegate.core.decide import EXPIRED, backoff, decide
from tidegate.core.flow import DEFAULT_RETRY, NEVER_PAGES, Flow, RetryPolicy
from tidegate.core.kind import Transfer
from tidegate.core.transfer import Move, step_of
from tidegate.flows.internal_transfer import INTERNAL_TRANSFER
from tidegate.flows.pool_transfer import POOL_TRANSFER

# Deadlines.


def test_an_unknown_after_the_deadline_is_rejected_as_expired() -> None:
    late = resting_in(REVIEWED, "REVIEWING", version=2, undoes=1, expired=True)
    move = decide(REVIEWED, late, TIMEOUT, CONTEXT)
    (entry,) = move.entries
    assert (entry.version, entry.answer, entry.reason) == (2, "rejected", EXPIRED)
    assert (move.after.state, move.after.version) == ("RELEASING", 3)
    assert (move.after.error, move.after.expired) == (EXPIRED, False)


@pytest.mark.parametrize(("answer", "to"), [(YES, "CAPTURING"), (NO, "RELEASING")], ids=str)
def test_a_done_or_rejected_counts_after_the_deadline(answer: Done | Rejected, to: str) -> None:
    late = resting_in(REVIEWED, "REVIEWING", version=2, undoes=1, expired=True)
    move = decide(REVIEWED, late, answer, CONTEXT)
    assert move.after.state == to
    assert move.entries[0].reason == ("" if answer is YES else NO.reason)


def test_an_unknown_before_the_deadline_stays() -> None:
    move = decide(REVIEWED, resting_in(REVIEWED, "REVIEWING"), TIMEOUT, CONTEXT)
    assert move.entries == ()


def test_entering_a_state_starts_its_deadline() -> None:
    held = resting_in(REVIEWED, "HOLDING", version=1)
    assert decide(REVIEWED, held, YES, CONTEXT).deadline_s == 3600.0
    assert decide(REVIEWED, held, NO, CONTEXT).deadline_s == 60.0
    reviewed = resting_in(REVIEWED, "REVIEWING", version=2, undoes=1)
    assert decide(REVIEWED, reviewed, YES, CONTEXT).deadline_s is None


def test_an_unknown_in_the_same_transaction_keeps_the_deadline() -> None:
    arrived = decide(REVIEWED, resting_in(REVIEWED, "HOLDING", version=1), YES, CONTEXT)
    waiting = decide(REVIEWED, arrived.after, TIMEOUT, CONTEXT)
    assert step_of(arrived).then(step_of(waiting)).deadline_s == 3600.0


def test_leaving_a_state_ends_its_deadline() -> None:
    arrived = decide(REVIEWED, resting_in(REVIEWED, "HOLDING", version=1), YES, CONTEXT)
    decided = decide(REVIEWED, arrived.after, YES, CONTEXT)
    assert step_of(arrived).then(step_of(decided)).deadline_s is None


def test_an_alarm_is_raised_also_after_the_deadline() -> None:
    late = resting_in(REVIEWED, "REVIEWING", version=2, undoes=1, expired=True)
    assert decide(REVIEWED, late, Unknown("wrong epoch", Alarm.PAGE), CONTEXT).alarm is Alarm.PAGE


# When an operator is paged.


def stays(transfer: Transfer, answer: Unknown = TIMEOUT, flow: Flow = INTERNAL_TRANSFER) -> Move:
    return decide(flow, transfer, answer, CONTEXT)


@pytest.mark.parametrize(
    ("state", "attempts", "waited_s", "alarm"),
    [
        ("SOURCE_PENDING", 9, 299.9, Alarm.NONE),
        ("SOURCE_PENDING", 10, 0.0, Alarm.PAGE),
        ("SOURCE_PENDING", 1, 300.0, Alarm.PAGE),
        ("TARGET_PENDING", 9, 59.9, Alarm.NONE),
        ("TARGET_PENDING", 10, 0.0, Alarm.CRITICAL),
        ("TARGET_PENDING", 1, 60.0, Alarm.CRITICAL),
    ],
)
def test_an_unknown_pages_after_the_allowed_attempts_or_time(
    state: str, attempts: int, waited_s: float, alarm: Alarm
) -> None:
    move = stays(resting_in(INTERNAL_TRANSFER, state, attempts=attempts, waited_s=waited_s))
    assert move.alarm is alarm
    assert move.after.paged is (alarm > Alarm.NONE)


def test_waiting_for_a_person_never_pages() -> None:
    waiting = resting_in(REVIEWED, "REVIEWING", attempts=10**6, waited_s=1e9)
    move = stays(waiting, flow=REVIEWED)
    assert ask_of(REVIEWED, "REVIEWING").retry is NEVER_PAGES
    assert (move.alarm, move.after.paged) == (Alarm.NONE, False)


@pytest.mark.parametrize("alarm", Alarm)
def test_an_unknown_may_raise_an_alarm_itself(alarm: Alarm) -> None:
    fresh = resting_in(INTERNAL_TRANSFER, "SOURCE_PENDING", attempts=1)
    assert stays(fresh, Unknown("odd", alarm)).alarm is alarm
    late = resting_in(INTERNAL_TRANSFER, "SOURCE_PENDING", attempts=10)
    assert stays(late, Unknown("odd", alarm)).alarm is max(alarm, Alarm.PAGE)


def test_a_transfer_stays_paged() -> None:
    before = resting_in(INTERNAL_TRANSFER, "SOURCE_PENDING", attempts=1, paged=True)
    assert stays(before).after.paged


def test_the_next_question_pages_again() -> None:
    """Found by simulation: a deposit was refused once, then stuck in flight without a page."""
    before = resting_in(INTERNAL_TRANSFER, "SOURCE_PENDING", attempts=12, paged=True)
    onward = decide(INTERNAL_TRANSFER, before, YES, CONTEXT)
    assert onward.after.state == "TARGET_PENDING"
    assert not onward.after.paged
    stuck = decide(INTERNAL_TRANSFER, onward.after.replace(attempts=10), TIMEOUT, CONTEXT)
    assert stuck.alarm is Alarm.CRITICAL


# Backoff.

policies = st.builds(RetryPolicy, first_s=st.floats(0.001, 60.0), cap_s=st.floats(0.001, 3600.0))
jitters = st.floats(0, 1, exclude_max=True)


@given(policies, st.integers(1, 10**9), jitters)
def test_the_pause_is_bounded(policy: RetryPolicy, attempt: int, jitter: float) -> None:
    pause_s = backoff(policy, attempt, jitter)
    assert 0.75 * min(policy.first_s, policy.cap_s) <= pause_s <= policy.cap_s


@given(policies, st.integers(1, 100), jitters)
def test_the_pause_never_shrinks(policy: RetryPolicy, attempt: int, jitter: float) -> None:
    assert backoff(policy, attempt, jitter) <= backoff(policy, attempt + 1, jitter)


@given(st.integers(1, 100), jitters, jitters)
def test_jitter_changes_at_most_a_quarter_of_the_pause(
    attempt: int, one: float, other: float
) -> None:
    a, b = backoff(DEFAULT_RETRY, attempt, one), backoff(DEFAULT_RETRY, attempt, other)
    assert abs(a - b) <= 0.25 * DEFAULT_RETRY.cap_s
    assert (a < b) <= (one < other)


def test_the_pause_doubles_from_a_second_to_a_cap() -> None:
    pauses = [backoff(DEFAULT_RETRY, attempt, 0.0) / 0.75 for attempt in range(1, 7)]
    assert pauses == [1.0, 2.0, 4.0, 8.0, 15.0, 15.0]


def test_attempts_are_numbered_from_one() -> None:
    with pytest.raises(AssertionError, match="number one"):
        backoff(DEFAULT_RETRY, 0, 0.0)


def test_an_unknown_in_the_creating_transaction_pauses_as_after_the_first_attempt() -> None:
    assert stays(resting_in(INTERNAL_TRANSFER, "SOURCE_PENDING", attempts=0)).delay_s == 0.75


# Waiting until a time that the system names.


@pytest.mark.parametrize(
    ("retry_s", "pause_s"), [(42.5, 42.5), (0.0, 0.001), (-3.0, 0.001), (1e9, 604_800.0)]
)
def test_a_system_may_choose_the_pause_within_bounds(retry_s: float, pause_s: float) -> None:
    fresh = resting_in(INTERNAL_TRANSFER, "SOURCE_PENDING", attempts=5, retries=3)
    move = stays(fresh, Unknown("busy until then", retry_s=retry_s))
    assert (move.delay_s, move.after.retries, move.entries) == (pause_s, 3, ())


def test_waiting_until_a_known_time_pages_all_the_same() -> None:
    late = resting_in(INTERNAL_TRANSFER, "SOURCE_PENDING", attempts=1, waited_s=301.0)
    assert stays(late, Unknown("later", retry_s=60.0)).alarm is Alarm.PAGE


def test_a_pause_without_jitter_is_always_the_same() -> None:
    policy = RetryPolicy(jitter=0.0)
    assert {backoff(policy, 3, jitter) for jitter in (0.0, 0.3, 0.99)} == {4.0}


def test_a_state_that_waits_for_a_person_or_a_time_waits_by_design() -> None:
    assert POOL_TRANSFER.waiting_states == {"CHECKING"}
    assert POOL_TRANSFER.waits_by_design
    assert not INTERNAL_TRANSFER.waits_by_design
