"""The rule: only answers move money, and they move it as the flow table defines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.samples import ALL_FLOWS, ANSWERS, ASKING, CONTEXT, ENDED, NO, REVIEWED, YES, ask_of
from tests.core.samples import resting as resting_in
from tidegate.core.answers import Alarm, Answer, Done, Rejected, Unknown
from tidegate.core.decide import DecisionContext, decide
from tidegate.core.flow import ACTIONS, Ask, Edge, Flow
from tidegate.core.kind import Transfer
from tidegate.core.transfer import Move, question_of, step_of
from tidegate.flows.internal_transfer import INTERNAL_TRANSFER

every_asking_state = pytest.mark.parametrize(
    ("flow", "state"), ASKING, ids=[f"{flow.name}-{state}" for flow, state in ASKING]
)
every_answer = pytest.mark.parametrize("answer", ANSWERS, ids=str)


def before_of(move: Move) -> Transfer:
    assert move.before is not None, "an answer is about a transfer that exists"
    return move.before


# Every flow, every state that asks, every answer.


@every_asking_state
@every_answer
def test_every_move_is_one_that_the_flow_allows_in_the_history(
    flow: Flow, state: str, answer: Answer
) -> None:
    opening = flow.arrive(flow.first)[-1] == state
    for version in (0, 3) if opening else (3,):
        move = decide(flow, resting_in(flow, state, version=version), answer, CONTEXT)
        for entry in move.entries:
            assert entry.path[-1] == move.after.state
            edge = Edge(version == 0, entry.path, entry.verb, entry.answer)
            assert edge in set(flow.answers())


@every_asking_state
@every_answer
def test_money_moves_only_as_the_verb_defines(flow: Flow, state: str, answer: Answer) -> None:
    before = resting_in(flow, state)
    after = decide(flow, before, answer, CONTEXT).after
    place_before, place_after = flow.row(state).place, flow.row(after.state).place
    action = ACTIONS.get(ask_of(flow, state).verb)
    if isinstance(answer, Done) and action is not None:
        assert place_before is action.before
        assert place_after is action.after[ask_of(flow, state).role]
    else:
        assert place_after is place_before


@every_asking_state
@pytest.mark.parametrize("alarm", Alarm)
def test_a_timeout_never_moves_money(flow: Flow, state: str, alarm: Alarm) -> None:
    before = resting_in(flow, state, version=5, attempts=99, waited_s=1e9)
    move = decide(flow, before, Unknown("timeout", alarm), CONTEXT)
    assert (move.after.state, move.after.version, move.entries) == (state, 5, ())
    assert move.after == before.replace(retries=1, paged=move.after.paged)
    assert move.rests
    assert move.attempt == "timeout"
    assert move.delay_s > 0


@every_asking_state
@pytest.mark.parametrize("answer", [YES, NO], ids=str)
def test_an_answer_adds_one_version_and_one_entry(flow: Flow, state: str, answer: Answer) -> None:
    before = resting_in(flow, state, version=5, attempts=4)
    move = decide(flow, before, answer, DecisionContext(actor="alice"))
    assert move.before == before
    assert move.after.version == 6
    assert move.after.attempts == 0
    (entry,) = move.entries
    assert isinstance(answer, Done | Rejected)
    assert (entry.version, entry.verb) == (5, ask_of(flow, state).verb)
    assert (entry.evidence, entry.actor) == (answer.evidence, "alice")
    assert entry.answer == ("done" if answer is YES else "rejected")
    assert entry.reason == ("" if answer is YES else NO.reason)


@every_asking_state
@every_answer
def test_an_answer_never_changes_the_request(flow: Flow, state: str, answer: Answer) -> None:
    before = resting_in(flow, state)
    after = decide(flow, before, answer, CONTEXT).after
    for field in (
        "id",
        "owner",
        "flow",
        "parties",
        "asset_id",
        "amount",
        "detail",
        "cid",
        "parent",
    ):
        assert getattr(after, field) == getattr(before, field)


@every_asking_state
@every_answer
def test_the_lane_is_the_system_to_ask_next(flow: Flow, state: str, answer: Answer) -> None:
    after = decide(flow, resting_in(flow, state), answer, CONTEXT).after
    row = flow.row(after.state)
    if isinstance(row, Ask):
        assert after.lane == after.parties[row.role].system
    else:
        assert flow.is_end(after.state)
        assert after.lane is None


@pytest.mark.parametrize(("flow", "state"), ENDED)
def test_an_end_takes_no_answer(flow: Flow, state: str) -> None:
    with pytest.raises(AssertionError, match="which asks nothing"):
        decide(flow, resting_in(flow, state), YES, CONTEXT)


# Runs of answers from creation on.


@st.composite
def runs(draw: st.DrawFn) -> tuple[Flow, list[Move]]:
    """The moves of one transfer after random answers."""
    flow = draw(st.sampled_from(ALL_FLOWS))
    transfer = resting_in(flow, flow.arrive(flow.first)[-1])
    moves: list[Move] = []
    for answer in draw(st.lists(st.sampled_from(ANSWERS), min_size=1, max_size=12)):
        if flow.is_end(transfer.state):
            break
        jitter = draw(st.floats(0, 1, exclude_max=True))
        moves.append(decide(flow, transfer, answer, DecisionContext(jitter)))
        transfer = moves[-1].after
    return flow, moves


@given(runs())
def test_moves_of_one_transaction_join_into_one_step(run: tuple[Flow, list[Move]]) -> None:
    _, (first, *later) = run
    joined = step_of(first)
    for move in later:
        joined = joined.then(step_of(move))
    last = [first, *later][-1]
    assert first.before is not None
    assert (joined.before, joined.after) == (first.before.kind, last.after.kind)
    assert joined.entry_forms == sum((step_of(move).entry_forms for move in [first, *later]), ())
    assert joined.alarm == max(move.alarm for move in [first, *later])
    assert (joined.delay_s, joined.attempt, joined.rests) == (
        last.delay_s,
        last.attempt,
        last.rests,
    )
    versions = range(first.start, last.after.version)
    assert [form.version for form in joined.entry_forms] == list(versions)


@given(runs())
def test_joining_steps_is_associative(run: tuple[Flow, list[Move]]) -> None:
    _, moves = run
    if len(moves) >= 3:
        a, b, c = map(step_of, moves[:3])
        assert a.then(b).then(c) is a.then(b.then(c))


@given(runs())
def test_each_path_of_the_history_begins_where_the_last_one_ended(
    run: tuple[Flow, list[Move]],
) -> None:
    flow, moves = run
    path: tuple[str, ...] = ()
    for entry in (entry for move in moves for entry in move.entries):
        assert not path or path[-1] == entry.path[0]
        path = entry.path
        assert not any(flow.ask(s) or flow.is_end(s) for s in entry.path[1:-1] if entry.version)
    assert moves[-1].after.state == (path[-1] if path else before_of(moves[0]).state)


@given(runs())
def test_an_undo_names_the_key_that_took_the_money(run: tuple[Flow, list[Move]]) -> None:
    flow, moves = run
    taking_version: int | None = None
    for move in moves:
        question = question_of(flow, before_of(move))
        if question.verb in ("refund", "capture", "release"):
            assert question.undoes == taking_version is not None
            assert question.expect_done
        else:
            assert (question.undoes, question.expect_done) == (None, False)
        for entry in move.entries:
            if entry.verb in ("debit", "hold", "capture") and entry.answer == "done":
                taking_version = entry.version


@given(runs())
def test_retries_are_never_reset(run: tuple[Flow, list[Move]]) -> None:
    _, moves = run
    for move in moves:
        assert 0 <= move.after.retries - before_of(move).retries <= 1
        if move.after.state == before_of(move).state:
            assert move.after.paged >= before_of(move).paged


def test_only_a_debit_that_is_done_can_be_undone() -> None:
    debiting = resting_in(INTERNAL_TRANSFER, "SOURCE_PENDING")
    assert decide(INTERNAL_TRANSFER, debiting, YES, CONTEXT).after.undoes == 0
    assert decide(INTERNAL_TRANSFER, debiting, NO, CONTEXT).after.undoes is None


# Resting: when no further question is asked in the transaction.


def test_a_state_that_breaks_a_cycle_is_not_asked_in_the_transaction_that_arrives() -> None:
    assert decide(REVIEWED, resting_in(REVIEWED, "HOLDING"), NO, CONTEXT).rests
    assert not decide(REVIEWED, resting_in(REVIEWED, "HOLDING"), YES, CONTEXT).rests


def test_a_transfer_rests_at_an_end() -> None:
    last = resting_in(INTERNAL_TRANSFER, "COMPENSATING", version=2, undoes=0)
    assert decide(INTERNAL_TRANSFER, last, YES, CONTEXT).rests
