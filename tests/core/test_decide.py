"""The rule: only answers move money, and they move it where the table says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.core.samples import ALL_FLOWS, ANSWERS, ASKING, ENDED, NO, NOBODY_KNOWS, REVIEWED, YES
from tests.core.samples import resting as resting_in
from tidegate.core.answers import Alarm, Answer, Done, Rejected, Unknown
from tidegate.core.decide import EXPIRED, Terms, backoff, decide
from tidegate.core.flow import (
    ACCOUNTS,
    ACTIONS,
    NEVER_PAGES,
    URGENT,
    Ask,
    Edge,
    Flow,
    Patience,
    Verb,
)
from tidegate.core.transfer import Move, Party, Transfer, born, question_of
from tidegate.flows.deposit import DEPOSIT
from tidegate.flows.internal_transfer import INTERNAL_TRANSFER

TERMS = Terms()
every_asking_state = pytest.mark.parametrize(
    ("flow", "state"), ASKING, ids=[f"{flow.name}-{state}" for flow, state in ASKING]
)
every_answer = pytest.mark.parametrize("answer", ANSWERS, ids=str)


def asked(flow: Flow, state: str) -> Ask:
    ask = flow.ask(state)
    assert ask is not None
    return ask


# Every flow, every state that asks, every answer.


@every_asking_state
@every_answer
def test_a_move_is_one_that_the_history_may_hold(flow: Flow, state: str, answer: Answer) -> None:
    opening = flow.arrive(flow.first)[-1] == state
    for version in (0, 3) if opening else (3,):
        move = decide(flow, resting_in(flow, state, version=version), answer, TERMS)
        for entry in move.entries:
            assert entry.path[-1] == move.after.state
            edge = Edge(version == 0, entry.path, entry.verb, entry.answer)
            assert edge in set(flow.answers())


@every_asking_state
@every_answer
def test_money_moves_only_as_the_verb_says(flow: Flow, state: str, answer: Answer) -> None:
    before = resting_in(flow, state)
    after = decide(flow, before, answer, TERMS).after
    here, there = flow.row(state).place, flow.row(after.state).place
    action = ACTIONS.get(asked(flow, state).verb)
    if isinstance(answer, Done) and action is not None:
        assert here is action.before
        assert there is action.after[asked(flow, state).role]
    else:
        assert there is here


@every_asking_state
@pytest.mark.parametrize("alarm", Alarm)
def test_a_timeout_never_moves_money(flow: Flow, state: str, alarm: Alarm) -> None:
    before = resting_in(flow, state, version=5, attempts=99, waited_s=1e9)
    move = decide(flow, before, Unknown("timeout", alarm), TERMS)
    assert (move.after.state, move.after.version, move.entries) == (state, 5, ())
    assert move.after == replace(before, retries=1, paged=move.after.paged)
    assert move.rests
    assert move.attempt == "timeout"
    assert move.delay_s > 0


@every_asking_state
@pytest.mark.parametrize("answer", [YES, NO], ids=str)
def test_an_answer_adds_one_version_and_one_entry(flow: Flow, state: str, answer: Answer) -> None:
    before = resting_in(flow, state, version=5, attempts=4)
    move = decide(flow, before, answer, Terms(actor="alice"))
    assert move.before == before
    assert move.after.version == 6
    assert move.after.attempts == 0
    (entry,) = move.entries
    assert isinstance(answer, Done | Rejected)
    assert (entry.version, entry.verb) == (5, asked(flow, state).verb)
    assert (entry.evidence, entry.actor) == (answer.evidence, "alice")
    assert entry.answer == ("done" if answer is YES else "rejected")
    assert entry.reason == ("" if answer is YES else NO.reason)


@every_asking_state
@every_answer
def test_an_answer_never_changes_what_was_wished_for(
    flow: Flow, state: str, answer: Answer
) -> None:
    before = resting_in(flow, state)
    after = decide(flow, before, answer, TERMS).after
    for kept in ("id", "owner", "flow", "parties", "asset_id", "amount", "detail", "cid", "parent"):
        assert getattr(after, kept) == getattr(before, kept)


@every_asking_state
@every_answer
def test_the_lane_is_the_system_to_ask_next(flow: Flow, state: str, answer: Answer) -> None:
    after = decide(flow, resting_in(flow, state), answer, TERMS).after
    row = flow.row(after.state)
    if isinstance(row, Ask):
        assert after.lane == after.parties[row.role].system
    else:
        assert flow.is_end(after.state)
        assert after.lane is None


@pytest.mark.parametrize(("flow", "state"), ENDED)
def test_an_end_is_an_end(flow: Flow, state: str) -> None:
    with pytest.raises(AssertionError, match="which asks nothing"):
        decide(flow, resting_in(flow, state), YES, TERMS)


# Whole lives.


@st.composite
def lives(draw: st.DrawFn) -> tuple[Flow, list[Move]]:
    """The moves of one transfer, whatever its systems answered."""
    flow = draw(st.sampled_from(ALL_FLOWS))
    transfer = born(flow, resting_in(flow, flow.arrive(flow.first)[-1]))
    moves: list[Move] = []
    for answer in draw(st.lists(st.sampled_from(ANSWERS), min_size=1, max_size=12)):
        if flow.is_end(transfer.state):
            break
        jitter = draw(st.floats(0, 1, exclude_max=True))
        moves.append(decide(flow, transfer, answer, Terms(jitter)))
        transfer = moves[-1].after
    return flow, moves


@given(lives())
def test_moves_of_one_transaction_compose_into_one(life: tuple[Flow, list[Move]]) -> None:
    _, (first, *later) = life
    whole = first
    for move in later:
        whole = whole.then(move)
    last = [first, *later][-1]
    assert (whole.before, whole.after) == (first.before, last.after)
    assert whole.entries == sum((move.entries for move in [first, *later]), ())
    assert whole.alarm == max(move.alarm for move in [first, *later])
    assert (whole.delay_s, whole.attempt, whole.rests) == (last.delay_s, last.attempt, last.rests)
    versions = range(first.before.version, last.after.version)
    assert [entry.version for entry in whole.entries] == list(versions)


@given(lives())
def test_composing_does_not_depend_on_where_one_begins(life: tuple[Flow, list[Move]]) -> None:
    _, moves = life
    if len(moves) >= 3:
        a, b, c = moves[:3]
        assert a.then(b).then(c) == a.then(b.then(c))


@given(lives())
def test_the_history_is_one_unbroken_walk(life: tuple[Flow, list[Move]]) -> None:
    flow, moves = life
    walked: tuple[str, ...] = ()
    for entry in (entry for move in moves for entry in move.entries):
        assert not walked or walked[-1] == entry.path[0]
        walked = entry.path
        assert not any(flow.ask(s) or flow.is_end(s) for s in entry.path[1:-1] if entry.version)
    assert moves[-1].after.state == (walked[-1] if walked else moves[0].before.state)


@given(lives())
def test_an_undo_names_the_key_under_which_money_was_taken(life: tuple[Flow, list[Move]]) -> None:
    flow, moves = life
    taken: int | None = None
    for move in moves:
        question = question_of(flow, move.before)
        if question.verb in ("refund", "capture", "release"):
            assert question.undoes == taken is not None
            assert question.expect_done
        else:
            assert (question.undoes, question.expect_done) == (None, False)
        for entry in move.entries:
            if entry.verb in ("debit", "hold") and entry.answer == "done":
                taken = entry.version


@given(lives())
def test_retries_are_never_forgotten(life: tuple[Flow, list[Move]]) -> None:
    _, moves = life
    for move in moves:
        assert 0 <= move.after.retries - move.before.retries <= 1
        assert move.after.paged >= move.before.paged


def test_only_what_is_done_can_be_undone() -> None:
    debiting = resting_in(INTERNAL_TRANSFER, "SOURCE_PENDING")
    assert decide(INTERNAL_TRANSFER, debiting, YES, TERMS).after.undoes == 0
    assert decide(INTERNAL_TRANSFER, debiting, NO, TERMS).after.undoes is None


# A «no» that is not acceptable.


def test_a_refused_refund_stays_and_adds_a_version_and_pages() -> None:
    before = resting_in(INTERNAL_TRANSFER, "COMPENSATING", version=2, undoes=0, attempts=3)
    move = decide(INTERNAL_TRANSFER, before, NO, TERMS)
    assert move.after == replace(
        before, version=3, attempts=0, retries=1, paged=True, error=NO.reason
    )
    assert [entry.path for entry in move.entries] == [("COMPENSATING", "COMPENSATING")]
    assert move.alarm is Alarm.CRITICAL
    assert move.rests
    assert move.delay_s > 0
    assert move.attempt == NO.reason


def test_a_refusal_without_a_column_always_pages() -> None:
    quiet = Patience(page_attempts=None, page_after_s=None, alarm=Alarm.NONE)
    rows = dict(DEPOSIT.rows)
    entering = asked(DEPOSIT, "ENTERING")
    rows[DEPOSIT.arrive("ENTERING")[0]] = replace(entering, patience=quiet)  # type: ignore[index]
    flow = Flow("quiet", first=DEPOSIT.first, rows=rows)
    assert decide(flow, resting_in(flow, "ENTERING"), NO, TERMS).alarm is Alarm.PAGE


def test_a_refusal_again_and_again_is_asked_less_and_less_often() -> None:
    transfer = resting_in(INTERNAL_TRANSFER, "COMPENSATING", version=2, undoes=0)
    delays = []
    for _ in range(8):
        move = decide(INTERNAL_TRANSFER, transfer, NO, TERMS)
        delays.append(move.delay_s)
        transfer = move.after
    assert delays == sorted(delays)
    assert delays[-1] == 0.75 * URGENT.cap_s
    assert transfer.version == 10
    assert question_of(INTERNAL_TRANSFER, transfer).undoes == 0


IRREVERSIBLE = Terms(irreversible=frozenset({"source system"}))


def test_a_refused_target_stays_where_the_source_cannot_undo() -> None:
    before = resting_in(INTERNAL_TRANSFER, "TARGET_PENDING", version=1, undoes=0)
    move = decide(INTERNAL_TRANSFER, before, NO, IRREVERSIBLE)
    assert (move.after.state, move.after.lane) == ("TARGET_PENDING", "target system")
    assert (move.after.version, move.alarm) == (2, Alarm.CRITICAL)
    assert decide(INTERNAL_TRANSFER, before, NO, TERMS).after.state == "COMPENSATING"


def test_a_question_put_anew_has_its_deadline_anew() -> None:
    late = resting_in(REVIEWED, "REVIEWING", version=2, undoes=1, expired=True)
    move = decide(REVIEWED, late, NOBODY_KNOWS, IRREVERSIBLE)
    assert (move.after.state, move.after.version) == ("REVIEWING", 3)
    assert (move.deadline_s, move.alarm) == (3600.0, Alarm.PAGE)


def test_only_the_system_that_would_have_to_undo_matters() -> None:
    before = resting_in(INTERNAL_TRANSFER, "TARGET_PENDING", version=1, undoes=0)
    others = Terms(irreversible=frozenset({"target system"}))
    assert decide(INTERNAL_TRANSFER, before, NO, others).after.state == "COMPENSATING"


@pytest.mark.parametrize(
    ("flow", "state", "to"),
    [
        (INTERNAL_TRANSFER, "SOURCE_PENDING", "FAILED"),
        (DEPOSIT, "CREDITING", "SUSPENDING"),
        (REVIEWED, "HOLDING", "CHECKING"),
    ],
)
def test_a_refusal_that_leads_to_no_undo_asks_nothing_of_the_source(
    flow: Flow, state: str, to: str
) -> None:
    assert decide(flow, resting_in(flow, state), NO, IRREVERSIBLE).after.state == to


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
    assert arrived.then(waiting).deadline_s == 3600.0


def test_a_deadline_ends_with_the_state_it_was_for() -> None:
    arrived = decide(REVIEWED, resting_in(REVIEWED, "HOLDING", version=1), YES, TERMS)
    decided = decide(REVIEWED, arrived.after, YES, TERMS)
    assert arrived.then(decided).deadline_s is None


def test_an_alarm_is_raised_also_past_the_deadline() -> None:
    late = resting_in(REVIEWED, "REVIEWING", version=2, undoes=1, expired=True)
    assert decide(REVIEWED, late, Unknown("wrong epoch", Alarm.PAGE), TERMS).alarm is Alarm.PAGE


# Resting.


def test_a_state_that_breaks_a_cycle_is_not_asked_in_the_transaction_that_arrives() -> None:
    assert decide(REVIEWED, resting_in(REVIEWED, "HOLDING"), NO, TERMS).rests
    assert not decide(REVIEWED, resting_in(REVIEWED, "HOLDING"), YES, TERMS).rests


def test_at_an_end_a_transfer_rests() -> None:
    last = resting_in(INTERNAL_TRANSFER, "COMPENSATING", version=2, undoes=0)
    assert decide(INTERNAL_TRANSFER, last, YES, TERMS).rests


def test_a_rejection_is_remembered_when_its_undo_is_done() -> None:
    refused = decide(INTERNAL_TRANSFER, resting_in(INTERNAL_TRANSFER, "TARGET_PENDING"), NO, TERMS)
    delayed = decide(INTERNAL_TRANSFER, refused.after, NOBODY_KNOWS, TERMS)
    undone = decide(INTERNAL_TRANSFER, delayed.after, YES, TERMS)
    assert (undone.after.state, undone.after.error) == ("ROLLED_BACK", NO.reason)


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


# Backing off.

patiences = st.builds(Patience, first_s=st.floats(0.001, 60.0), cap_s=st.floats(0.001, 3600.0))
jitters = st.floats(0, 1, exclude_max=True)


@given(patiences, st.integers(1, 10**9), jitters)
def test_the_wait_is_bounded(patience: Patience, attempt: int, jitter: float) -> None:
    wait = backoff(patience, attempt, jitter)
    assert 0.75 * min(patience.first_s, patience.cap_s) <= wait <= patience.cap_s


@given(patiences, st.integers(1, 100), jitters)
def test_the_wait_never_shrinks(patience: Patience, attempt: int, jitter: float) -> None:
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


def test_a_refund_that_is_re_pointed_asks_somebody_else_at_once() -> None:
    refunding = resting_in(INTERNAL_TRANSFER, "COMPENSATING", version=2, undoes=0)
    suspense = ("ledger", "SUSPENSE", 7)
    move = decide(INTERNAL_TRANSFER, refunding, Rejected("CLOSED", repoint=suspense), TERMS)
    assert (move.after.state, move.after.version, move.after.lane) == ("COMPENSATING", 3, "ledger")
    assert (move.delay_s, move.rests, move.alarm) == (0.0, False, Alarm.NONE)
    then = question_of(INTERNAL_TRANSFER, move.after)
    # A credit: the suspense book was never debited, so there is nothing there to undo.
    assert (then.verb, then.undoes, then.opens) == (Verb.CREDIT, None, True)
    assert then.party == Party(*suspense)
    paid = decide(INTERNAL_TRANSFER, move.after, YES, TERMS)
    assert paid.after.state == "ROLLED_BACK"
    assert paid.entries[0].verb == "refund"


def test_only_a_refund_can_be_re_pointed() -> None:
    crediting = resting_in(INTERNAL_TRANSFER, "TARGET_PENDING", version=1, undoes=0)
    astray = Rejected("CLOSED", repoint=("ledger", "SUSPENSE", 7))
    with pytest.raises(AssertionError):
        decide(INTERNAL_TRANSFER, crediting, astray, IRREVERSIBLE)
