"""A flow is a sound table or no table: each sentence of the check, and the mistakes it stops."""

from collections.abc import Mapping
from enum import StrEnum

import msgspec
import pytest

from tests.core.samples import ALL_FLOWS, ASKING, REVIEWED, Step
from tidegate.core.answers import Alarm
from tidegate.core.flow import (
    ACCOUNTS,
    ACTIONS,
    NEVER_PAGES,
    TAKES,
    UNDOES,
    URGENT,
    Ask,
    Edge,
    End,
    Flow,
    Pass,
    Place,
    RetryPolicy,
    Row,
    Verb,
)
from tidegate.flows.internal_transfer import INTERNAL_TRANSFER, State

DEBIT = Ask(Place.SOURCE, "source", Verb.DEBIT, done=State.SOURCE_DONE, rejected=State.FAILED)
CREDIT = Ask(
    Place.IN_FLIGHT,
    "target",
    Verb.CREDIT,
    done=State.COMMITTED,
    rejected=State.COMPENSATING,
)
REFUND = Ask(Place.IN_FLIGHT, "source", Verb.REFUND, done=State.ROLLED_BACK)


class Foreign(StrEnum):
    """States of some other flow."""

    ELSEWHERE = "ELSEWHERE"


def faults(
    changes: Mapping[StrEnum, Row],
    *,
    without: frozenset[StrEnum] = frozenset(),
    base: Flow = INTERNAL_TRANSFER,
    first: StrEnum | None = None,
    codes: Mapping[StrEnum, int] | None = None,
) -> list[str]:
    """What the check says of a sound table after these changes."""
    rows = {s: row for s, row in (dict(base.rows) | dict(changes)).items() if s not in without}
    try:
        Flow("changed", first or base.first, rows, codes or {}, base.roles)
    except TypeError as unsound:
        title, *sentences = str(unsound).splitlines()
        assert title == "flow changed is unsound:"
        return [sentence.strip() for sentence in sentences]
    return []


def test_a_sound_table_has_no_faults() -> None:
    assert faults({}) == []
    assert faults({}, base=REVIEWED) == []


# Each sentence of the check.


def test_a_state_that_is_named_needs_a_row() -> None:
    forgotten = frozenset({State.COMPENSATING})
    assert "COMPENSATING is named but has no row" in faults({}, without=forgotten)


def test_a_row_leads_only_to_states_with_rows() -> None:
    assert faults({State.INIT: Pass(Place.SOURCE, to=Foreign.ELSEWHERE)})[0] == (
        "INIT leads to ELSEWHERE, which is no state here"
    )
    lost = Ask(Place.IN_FLIGHT, "source", Verb.REFUND, done=Foreign.ELSEWHERE)
    assert "COMPENSATING leads to ELSEWHERE, which is no state here" in faults(
        {State.COMPENSATING: lost}
    )


def test_only_states_have_codes() -> None:
    assert faults({}, codes={Foreign.ELSEWHERE: 99}) == ["ELSEWHERE has a code but no row"]


def test_every_state_can_be_reached() -> None:
    never_refunds = Ask(Place.IN_FLIGHT, "target", Verb.CREDIT, done=State.COMMITTED)
    assert faults({State.TARGET_PENDING: never_refunds}) == [
        "COMPENSATING cannot be reached",
        "ROLLED_BACK cannot be reached",
    ]


def test_every_state_reaches_an_end() -> None:
    turning = Pass(Place.IN_FLIGHT, to=State.COMPENSATING)
    assert "COMPENSATING cannot reach an end" in faults({State.COMPENSATING: turning})


def test_a_waypoint_moves_no_money() -> None:
    skipping = Pass(Place.SOURCE, to=State.TARGET_PENDING)
    assert "SOURCE_DONE: a waypoint moves no money; TARGET_PENDING disagrees" in faults(
        {State.SOURCE_DONE: skipping}
    )


@pytest.mark.parametrize("place", [Place.IN_FLIGHT, Place.HELD])
def test_no_money_stays_on_its_way_at_an_end(place: Place) -> None:
    assert f"COMMITTED: money cannot stay {place} at an end" in faults(
        {State.COMMITTED: End(place)}
    )


def test_a_verb_takes_money_only_from_where_it_is() -> None:
    too_early = Ask(Place.SOURCE, "source", Verb.REFUND, done=State.FAILED)
    assert "SOURCE_PENDING: refund takes money from in flight, not source" in faults(
        {State.SOURCE_PENDING: too_early}
    )


@pytest.mark.parametrize(
    ("state", "row", "sentence"),
    [
        (State.SOURCE_PENDING, DEBIT, "SOURCE_PENDING: debit asks source, not target"),
        (
            State.TARGET_PENDING,
            CREDIT,
            "TARGET_PENDING: credit asks suspense or target, not source",
        ),
        (State.COMPENSATING, REFUND, "COMPENSATING: refund asks source, not target"),
    ],
)
def test_a_verb_asks_only_the_party_it_is_meant_for(state: State, row: Ask, sentence: str) -> None:
    wrong = "source" if row.role == "target" else "target"
    asked = Ask(row.place, wrong, row.verb, done=row.done, rejected=row.rejected)
    assert faults({state: asked}) == [sentence]


def test_a_verb_leaves_money_only_where_it_puts_it() -> None:
    forgetful = Ask(Place.SOURCE, "source", Verb.DEBIT, done=State.COMMITTED, rejected=State.FAILED)
    assert "SOURCE_PENDING: debit leaves money at in flight; COMMITTED disagrees" in faults(
        {State.SOURCE_PENDING: forgetful}
    )


def test_a_check_leaves_money_where_it_was() -> None:
    paying = Ask(Place.HELD, "person", Verb.CHECK, done=Step.PAID, rejected=Step.RELEASING)
    assert "REVIEWING: check leaves money at held; PAID disagrees" in faults(
        {Step.REVIEWING: paying}, base=REVIEWED
    )


def test_a_rejection_moves_no_money() -> None:
    generous = Ask(
        Place.IN_FLIGHT, "target", Verb.CREDIT, done=State.COMMITTED, rejected=State.FAILED
    )
    assert "TARGET_PENDING: a rejection moves no money; FAILED disagrees" in faults(
        {State.TARGET_PENDING: generous}
    )


DEADLINE = "a deadline needs a verb that moves nothing and a state for its «no»"


@pytest.mark.parametrize(
    ("state", "row"),
    [
        (State.SOURCE_PENDING, DEBIT),
        (State.TARGET_PENDING, CREDIT),
        (State.COMPENSATING, REFUND),
    ],
)
def test_what_moves_money_has_no_deadline(state: State, row: Ask) -> None:
    hurried = Ask(
        row.place, row.role, row.verb, done=row.done, rejected=row.rejected, deadline_s=30.0
    )
    assert faults({state: hurried}) == [f"{state}: {DEADLINE}"]


def test_a_deadline_needs_somewhere_to_go() -> None:
    nowhere = Ask(Place.SOURCE, "policy", Verb.CHECK, done=Step.HOLDING, deadline_s=1, rests=True)
    assert f"CHECKING: {DEADLINE}" in faults({Step.CHECKING: nowhere}, base=REVIEWED)


def test_only_what_moves_nothing_and_has_somewhere_to_go_is_given_up() -> None:
    weary, no = (
        RetryPolicy(most=3),
        "to give up needs a verb that moves nothing and a state for its",
    )
    debit = msgspec.structs.replace(DEBIT, patience=weary)
    assert faults({State.SOURCE_PENDING: debit}) == [f"SOURCE_PENDING: {no} «no»"]
    lost = Ask(Place.SOURCE, "policy", Verb.CHECK, Step.HOLDING, patience=weary, rests=True)
    assert f"CHECKING: {no} «no»" in faults({Step.CHECKING: lost}, base=REVIEWED)


def test_a_cycle_without_rest_could_turn_for_ever() -> None:
    restless = Ask(Place.SOURCE, "policy", Verb.CHECK, done=Step.HOLDING, rejected=Step.REFUSED)
    assert faults({Step.CHECKING: restless}, base=REVIEWED) == [
        "CHECKING lies on a cycle in which no state rests",
        "HOLDING lies on a cycle in which no state rests",
    ]


def test_a_state_that_leads_to_itself_is_a_cycle() -> None:
    again = Ask(Place.SOURCE, "policy", Verb.CHECK, done=Step.HOLDING, rejected=Step.CHECKING)
    assert "CHECKING lies on a cycle in which no state rests" in faults(
        {Step.CHECKING: again}, base=REVIEWED
    )


def test_a_ring_of_waypoints_is_refused_and_not_walked() -> None:
    ring: Mapping[StrEnum, Row] = {
        State.INIT: Pass(Place.SOURCE, to=State.SOURCE_PENDING),
        State.SOURCE_PENDING: Pass(Place.SOURCE, to=State.INIT),
    }
    assert "INIT lies on a cycle in which no state rests" in faults(ring)


# The mistakes that specifications make.


def test_a_transfer_is_not_complete_before_the_credit() -> None:
    early = Pass(Place.IN_FLIGHT, to=State.COMMITTED)
    assert "SOURCE_DONE: a waypoint moves no money; COMMITTED disagrees" in faults(
        {State.SOURCE_DONE: early}
    )


def test_nothing_is_refunded_that_was_not_debited() -> None:
    unearned = Ask(
        Place.SOURCE, "source", Verb.DEBIT, done=State.SOURCE_DONE, rejected=State.COMPENSATING
    )
    assert "SOURCE_PENDING: a rejection moves no money; COMPENSATING disagrees" in faults(
        {State.SOURCE_PENDING: unearned}
    )


def test_a_refund_is_not_asked_of_the_target() -> None:
    elsewhere = Ask(Place.IN_FLIGHT, "target", Verb.REFUND, done=State.ROLLED_BACK)
    assert faults({State.COMPENSATING: elsewhere}) == [
        "COMPENSATING: refund asks source, not target"
    ]


def test_a_refused_target_does_not_end_as_if_nothing_had_happened() -> None:
    shrugging = Ask(
        Place.IN_FLIGHT, "target", Verb.CREDIT, done=State.COMMITTED, rejected=State.ROLLED_BACK
    )
    assert "TARGET_PENDING: a rejection moves no money; ROLLED_BACK disagrees" in faults(
        {State.TARGET_PENDING: shrugging}
    )


def test_a_hold_is_not_forgotten_at_the_end() -> None:
    frozen = Ask(Place.HELD, "person", Verb.CHECK, done=Step.RETURNED, rejected=Step.RELEASING)
    assert "REVIEWING: check leaves money at held; RETURNED disagrees" in faults(
        {Step.REVIEWING: frozen}, base=REVIEWED
    )


def test_a_debit_is_not_a_way_to_end_a_hold() -> None:
    again = Ask(Place.HELD, "source", Verb.DEBIT, done=Step.PAYING)
    assert faults({Step.CAPTURING: again}, base=REVIEWED) == [
        "CAPTURING: debit takes money from source, not held"
    ]


class Minting(StrEnum):
    CREDITING = "CREDITING"
    RICH = "RICH"


def test_a_flow_begins_with_the_money_at_its_source() -> None:
    with pytest.raises(TypeError):
        Flow(
            "minting",
            first=Minting.CREDITING,
            rows={
                Minting.CREDITING: Ask(Place.IN_FLIGHT, "target", Verb.CREDIT, done=Minting.RICH),
                Minting.RICH: End(Place.TARGET),
            },
        )


def test_what_is_credited_to_the_target_does_not_lie_in_suspense() -> None:
    assert faults({State.COMMITTED: End(Place.SUSPENSE)}) != []


# The law of the missing column.


def test_a_flow_cannot_say_on_timeout_refund() -> None:
    """A row has two ways onward, Done and Rejected; no field takes a state for anything else."""
    onward = {f for f in Ask.__struct_fields__ if "StrEnum" in str(Ask.__annotations__[f])}
    assert onward == {"done", "rejected"}
    assert not any("timeout" in f or "unknown" in f for f in Ask.__struct_fields__)
    for flow in ALL_FLOWS:
        for edge in flow.answers():
            assert edge.answer in ("done", "rejected")


def test_a_deadline_is_not_that_column_either() -> None:
    for flow, state in ASKING:
        ask = flow.ask(state)
        assert ask is not None
        assert ask.deadline_s is None or ask.verb is Verb.CHECK


# What the verbs are.


def test_every_verb_but_check_moves_money() -> None:
    assert set(Verb) - set(ACTIONS) == {Verb.CHECK}
    assert all(action.before not in action.after.values() for action in ACTIONS.values())


def test_an_undo_asks_whom_the_taking_asked() -> None:
    taken = {role for verb in TAKES for role in ACTIONS[verb].after}
    assert all(set(ACTIONS[verb].after) == taken for verb in UNDOES)


def test_patience_says_when_a_human_is_called() -> None:
    assert (ACCOUNTS.page_attempts, ACCOUNTS.page_after_s, ACCOUNTS.alarm) == (
        10,
        300.0,
        Alarm.PAGE,
    )
    assert (URGENT.page_after_s, URGENT.alarm) == (60.0, Alarm.CRITICAL)
    assert (NEVER_PAGES.page_attempts, NEVER_PAGES.page_after_s) == (None, None)
    assert all(p.cap_s <= 15.0 for p in (ACCOUNTS, URGENT, NEVER_PAGES))


# Reading the table.


def test_arriving_walks_the_waypoints_to_where_it_rests() -> None:
    assert INTERNAL_TRANSFER.arrive("INIT") == ("INIT", "SOURCE_PENDING")
    assert INTERNAL_TRANSFER.arrive("COMMITTED") == ("COMMITTED",)


def test_a_state_is_found_by_its_text_as_the_store_holds_it() -> None:
    assert INTERNAL_TRANSFER.row("INIT") is INTERNAL_TRANSFER.rows[State.INIT]
    assert INTERNAL_TRANSFER.ask("INIT") is None
    assert INTERNAL_TRANSFER.is_end("FAILED")
    assert not INTERNAL_TRANSFER.is_end("SOURCE_PENDING")


def test_the_first_answer_walks_from_birth_and_a_later_one_does_not() -> None:
    assert INTERNAL_TRANSFER.path(0, "SOURCE_PENDING", "SOURCE_DONE") == (
        "INIT",
        "SOURCE_PENDING",
        "SOURCE_DONE",
        "TARGET_PENDING",
    )
    assert REVIEWED.path(3, "CHECKING", "HOLDING") == ("CHECKING", "HOLDING")


def test_the_question_of_an_answer_is_the_first_that_its_path_asks() -> None:
    path = INTERNAL_TRANSFER.path(0, "SOURCE_PENDING", "SOURCE_DONE")
    assert INTERNAL_TRANSFER.asked(path) is INTERNAL_TRANSFER.ask("SOURCE_PENDING")
    assert INTERNAL_TRANSFER.asked(["INIT", "of another flow", "COMMITTED"]) is None


def test_the_answers_of_a_state_are_done_rejected_and_a_rejection_that_stays() -> None:
    opening = [edge for edge in INTERNAL_TRANSFER.answers() if edge.verb == "debit"]
    ways = {
        ("done", "SOURCE_DONE", "TARGET_PENDING"),
        ("rejected", "FAILED"),
        ("rejected", "SOURCE_PENDING"),
    }
    assert set(opening) == {
        Edge(first=born, path=(*begin, *onward), verb="debit", answer=answer)
        for answer, *onward in ways
        for born, begin in ((True, ["INIT", "SOURCE_PENDING"]), (False, ["SOURCE_PENDING"]))
    }


def test_a_rejection_without_a_column_only_stays() -> None:
    refused = [e for e in INTERNAL_TRANSFER.answers() if e.verb == "refund"]
    assert [(e.first, e.path, e.answer) for e in refused] == [
        (False, ("COMPENSATING", "ROLLED_BACK"), "done"),
        (False, ("COMPENSATING", "COMPENSATING"), "rejected"),
    ]


def test_the_diagram_shows_every_way_and_nothing_else() -> None:
    for flow in ALL_FLOWS:
        head, begin, *ways = flow.mermaid().splitlines()
        ends = [state for state, row in flow.rows.items() if isinstance(row, End)]
        assert head == "stateDiagram-v2"
        assert begin.split() == ["[*]", "-->", flow.first]
        assert len(ways) == len(list(flow.edges())) + len(ends)
        for state, why, to in flow.edges():
            assert f"    {state} --> {to}" + (f" : {why}" if why else "") in ways
        for state in ends:
            assert f"    {state} --> [*]" in ways
