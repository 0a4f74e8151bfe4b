"""How long a question may stay open: deadlines, pauses, and when a person is called."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.samples import NO, NOBODY_KNOWS, REVIEWED, TERMS, YES, asked
from tests.core.samples import resting as resting_in
from tidegate.core.answers import Alarm, Done, Rejected, Unknown
from tidegate.core.decide import EXPIRED, backoff, decide
from tidegate.core.flow import ACCOUNTS, NEVER_PAGES, Flow, RetryPolicy
from tidegate.core.kind import Transfer
from tidegate.core.transfer import Move, step_of
from tidegate.flows.internal_transfer import INTERNAL_TRANSFER
from tidegate.flows.pool_transfer import POOL_TRANSFER

# Deadlines.


def test_past_its_deadline_unknown_is_a_no_that_says_so() -> None:
    late = resting_in(REVIEWED, "REVIEWING", version=2, undoes=1, expired=True)
    move = decide(REVIEWED, late, NOBODY_KNOWS, TERMS)
    (entry,) = move.entries
    assert (entry.version, entry.answer, entry.reason) == (2, "rejected", EXPIRED)
    assert (move.after.state, move.after.version) == ("RELEASING", 3)
    assert (move.after.error, move.after.expired) == (EXPIRED, False)


@pytest.mark.parametrize(("answer", "to"), [(YES, "CAPTURING"), (NO, "RELEASING")], ids=str)
def test_a_real_answer_wins_over_a_deadline(answer: Done | Rejected, to: str) -> None:
    late = resting_in(REVIEWED, "REVIEWING", version=2, undoes=1, expired=True)
    move = decide(REVIEWED, late, answer, TERMS)
    assert move.after.state == to
    assert move.entries[0].reason == ("" if answer is YES else NO.reason)


def test_before_its_deadline_unknown_is_unknown() -> None:
    move = decide(REVIEWED, resting_in(REVIEWED, "REVIEWING"), NOBODY_KNOWS, TERMS)
    assert move.entries == ()


def test_an_arrival_starts_the_deadline_of_the_state_it_arrives_in() -> None:
    held = resting_in(REVIEWED, "HOLDING", version=1)
    assert decide(REVIEWED, held, YES, TERMS).deadline_s == 3600.0
    assert decide(REVIEWED, held, NO, TERMS).deadline_s == 60.0
    reviewed = resting_in(REVIEWED, "REVIEWING", version=2, undoes=1)
    assert decide(REVIEWED, reviewed, YES, TERMS).deadline_s is None


def test_a_deadline_survives_an_unknown_in_the_transaction_that_starts_it() -> None:
    arrived = decide(REVIEWED, resting_in(REVIEWED, "HOLDING", version=1), YES, TERMS)
    waiting = decide(REVIEWED, arrived.after, NOBODY_KNOWS, TERMS)
    assert step_of(arrived).then(step_of(waiting)).deadline_s == 3600.0


def test_a_deadline_ends_with_the_state_it_was_for() -> None:
    arrived = decide(REVIEWED, resting_in(REVIEWED, "HOLDING", version=1), YES, TERMS)
    decided = decide(REVIEWED, arrived.after, YES, TERMS)
    assert step_of(arrived).then(step_of(decided)).deadline_s is None


def test_an_alarm_is_raised_also_past_the_deadline() -> None:
    late = resting_in(REVIEWED, "REVIEWING", version=2, undoes=1, expired=True)
    assert decide(REVIEWED, late, Unknown("wrong epoch", Alarm.PAGE), TERMS).alarm is Alarm.PAGE


# When a human is called.


def stays(
    transfer: Transfer, answer: Unknown = NOBODY_KNOWS, flow: Flow = INTERNAL_TRANSFER
) -> Move:
    return decide(flow, transfer, answer, TERMS)


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
def test_an_unknown_pages_when_patience_ends(
    state: str, attempts: int, waited_s: float, alarm: Alarm
) -> None:
    move = stays(resting_in(INTERNAL_TRANSFER, state, attempts=attempts, waited_s=waited_s))
    assert move.alarm is alarm
    assert move.after.paged is (alarm > Alarm.NONE)


def test_a_person_may_take_all_the_time_in_the_world() -> None:
    waiting = resting_in(REVIEWED, "REVIEWING", attempts=10**6, waited_s=1e9)
    move = stays(waiting, flow=REVIEWED)
    assert asked(REVIEWED, "REVIEWING").patience is NEVER_PAGES
    assert (move.alarm, move.after.paged) == (Alarm.NONE, False)


@pytest.mark.parametrize("alarm", Alarm)
def test_an_answer_may_be_alarming_by_itself(alarm: Alarm) -> None:
    fresh = resting_in(INTERNAL_TRANSFER, "SOURCE_PENDING", attempts=1)
    assert stays(fresh, Unknown("odd", alarm)).alarm is alarm
    late = resting_in(INTERNAL_TRANSFER, "SOURCE_PENDING", attempts=10)
    assert stays(late, Unknown("odd", alarm)).alarm is max(alarm, Alarm.PAGE)


def test_who_was_paged_for_stays_so() -> None:
    before = resting_in(INTERNAL_TRANSFER, "SOURCE_PENDING", attempts=1, paged=True)
    assert stays(before).after.paged


def test_the_next_question_calls_somebody_anew() -> None:
    """Found by simulation: a deposit was refused once, then stuck in flight, and nobody knew."""
    before = resting_in(INTERNAL_TRANSFER, "SOURCE_PENDING", attempts=12, paged=True)
    onward = decide(INTERNAL_TRANSFER, before, YES, TERMS)
    assert onward.after.state == "TARGET_PENDING"
    assert not onward.after.paged
    stuck = decide(INTERNAL_TRANSFER, onward.after.but(attempts=10), NOBODY_KNOWS, TERMS)
    assert stuck.alarm is Alarm.CRITICAL


# Backing off.

patiences = st.builds(RetryPolicy, first_s=st.floats(0.001, 60.0), cap_s=st.floats(0.001, 3600.0))
jitters = st.floats(0, 1, exclude_max=True)


@given(patiences, st.integers(1, 10**9), jitters)
def test_the_wait_is_bounded(patience: RetryPolicy, attempt: int, jitter: float) -> None:
    wait = backoff(patience, attempt, jitter)
    assert 0.75 * min(patience.first_s, patience.cap_s) <= wait <= patience.cap_s


@given(patiences, st.integers(1, 100), jitters)
def test_the_wait_never_shrinks(patience: RetryPolicy, attempt: int, jitter: float) -> None:
    assert backoff(patience, attempt, jitter) <= backoff(patience, attempt + 1, jitter)


@given(st.integers(1, 100), jitters, jitters)
def test_chance_spreads_only_the_last_quarter(attempt: int, one: float, other: float) -> None:
    a, b = backoff(ACCOUNTS, attempt, one), backoff(ACCOUNTS, attempt, other)
    assert abs(a - b) <= 0.25 * ACCOUNTS.cap_s
    assert (a < b) <= (one < other)


def test_the_wait_doubles_from_a_second_to_a_cap() -> None:
    waits = [backoff(ACCOUNTS, attempt, 0.0) / 0.75 for attempt in range(1, 7)]
    assert waits == [1.0, 2.0, 4.0, 8.0, 15.0, 15.0]


def test_there_is_no_attempt_before_the_first() -> None:
    with pytest.raises(AssertionError, match="number one"):
        backoff(ACCOUNTS, 0, 0.0)


def test_an_answer_found_in_the_birth_transaction_waits_as_after_a_first_attempt() -> None:
    assert stays(resting_in(INTERNAL_TRANSFER, "SOURCE_PENDING", attempts=0)).delay_s == 0.75


# Told when to come back, or giving up.


@pytest.mark.parametrize(
    ("wished_s", "pause_s"), [(42.5, 42.5), (0.0, 0.001), (-3.0, 0.001), (1e9, 604_800.0)]
)
def test_a_system_may_say_when_to_ask_again_within_bounds(wished_s: float, pause_s: float) -> None:
    fresh = resting_in(INTERNAL_TRANSFER, "SOURCE_PENDING", attempts=5, retries=3)
    move = stays(fresh, Unknown("busy until then", retry_s=wished_s))
    assert (move.delay_s, move.after.retries, move.entries) == (pause_s, 3, ())


def test_who_waits_for_a_known_time_is_paged_all_the_same() -> None:
    late = resting_in(INTERNAL_TRANSFER, "SOURCE_PENDING", attempts=1, waited_s=301.0)
    assert stays(late, Unknown("later", retry_s=60.0)).alarm is Alarm.PAGE


def test_a_pause_without_chance_is_always_the_same() -> None:
    exact = RetryPolicy(chance=0.0)
    assert {backoff(exact, 3, jitter) for jitter in (0.0, 0.3, 0.99)} == {4.0}


def test_a_state_that_waits_for_a_person_or_a_time_waits_by_design() -> None:
    assert POOL_TRANSFER.waiting_states == {"CHECKING"}
    assert POOL_TRANSFER.waits_by_design
    assert not INTERNAL_TRANSFER.waits_by_design
