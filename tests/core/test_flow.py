"""The check of flow tables: each fault that it reports, and the mistakes that it prevents."""

from collections.abc import Mapping
from enum import StrEnum

import msgspec
import pytest

from tests.core.samples import ALL_FLOWS, ASKING, REVIEWED, Review
from tidegate.core.answers import Alarm
from tidegate.core.flow import (
    ACTIONS,
    DEFAULT_RETRY,
    NEVER_PAGES,
    TAKING_VERBS,
    UNDO_VERBS,
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
    """A state of another flow."""

    ELSEWHERE = "ELSEWHERE"


def faults(
    changes: Mapping[StrEnum, Row],
    *,
    without: frozenset[StrEnum] = frozenset(),
    base: Flow = INTERNAL_TRANSFER,
    first: StrEnum | None = None,
    codes: Mapping[StrEnum, int] | None = None,
) -> list[str]:
    """The faults of a sound table after these changes."""
    rows = {s: row for s, row in (dict(base.rows) | dict(changes)).items() if s not in without}
    try:
        Flow("changed", first or base.first, rows, codes or {}, base.roles)
    except TypeError as error:
        title, *sentences = str(error).splitlines()
        assert title == "flow changed is unsound:"
        return [sentence.strip() for sentence in sentences]
    return []


def test_a_sound_table_has_no_faults() -> None:
    assert faults({}) == []
    assert faults({}, base=REVIEWED) == []


# Each fault.


def test_every_named_state_needs_a_row() -> None:
    missing = frozenset({State.COMPENSATING})
    assert "COMPENSATING is named but has no row" in faults({}, without=missing)


def test_a_row_leads_only_to_states_with_rows() -> None:
    assert faults({State.INIT: Pass(Place.SOURCE, to=Foreign.ELSEWHERE)})[0] == (
        "INIT leads to ELSEWHERE, which is no state here"
    )
    row = Ask(Place.IN_FLIGHT, "source", Verb.REFUND, done=Foreign.ELSEWHERE)
    assert "COMPENSATING leads to ELSEWHERE, which is no state here" in faults(
        {State.COMPENSATING: row}
    )


def test_only_states_have_codes() -> None:
    assert faults({}, codes={Foreign.ELSEWHERE: 99}) == ["ELSEWHERE has a code but no row"]


def test_every_state_must_be_reachable() -> None:
    row = Ask(Place.IN_FLIGHT, "target", Verb.CREDIT, done=State.COMMITTED)
    assert faults({State.TARGET_PENDING: row}) == [
        "COMPENSATING cannot be reached",
        "ROLLED_BACK cannot be reached",
    ]


def test_every_state_must_reach_an_end() -> None:
    row = Pass(Place.IN_FLIGHT, to=State.COMPENSATING)
    assert "COMPENSATING cannot reach an end" in faults({State.COMPENSATING: row})


def test_a_waypoint_moves_no_money() -> None:
    row = Pass(Place.SOURCE, to=State.TARGET_PENDING)
    assert "SOURCE_DONE: a waypoint moves no money; TARGET_PENDING disagrees" in faults(
        {State.SOURCE_DONE: row}
    )


@pytest.mark.parametrize("place", [Place.IN_FLIGHT, Place.HELD])
def test_no_money_is_held_or_in_flight_at_an_end(place: Place) -> None:
    assert f"COMMITTED: money cannot stay {place} at an end" in faults(
        {State.COMMITTED: End(place)}
    )


def test_a_verb_takes_money_only_from_its_place() -> None:
    row = Ask(Place.SOURCE, "source", Verb.REFUND, done=State.FAILED)
    assert "SOURCE_PENDING: refund takes money from in flight, not source" in faults(
        {State.SOURCE_PENDING: row}
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
def test_a_verb_asks_only_its_roles(state: State, row: Ask, sentence: str) -> None:
    wrong = "source" if row.role == "target" else "target"
    asked = Ask(row.place, wrong, row.verb, done=row.done, rejected=row.rejected)
    assert faults({state: asked}) == [sentence]


def test_the_state_after_a_verb_has_the_place_that_the_verb_moves_money_to() -> None:
    row = Ask(Place.SOURCE, "source", Verb.DEBIT, done=State.COMMITTED, rejected=State.FAILED)
    assert "SOURCE_PENDING: debit leaves money at in flight; COMMITTED disagrees" in faults(
        {State.SOURCE_PENDING: row}
    )


def test_a_check_moves_no_money() -> None:
    row = Ask(Place.HELD, "person", Verb.CHECK, done=Review.PAID, rejected=Review.RELEASING)
    assert "REVIEWING: check leaves money at held; PAID disagrees" in faults(
        {Review.REVIEWING: row}, base=REVIEWED
    )


def test_a_rejection_moves_no_money() -> None:
    row = Ask(Place.IN_FLIGHT, "target", Verb.CREDIT, done=State.COMMITTED, rejected=State.FAILED)
    assert "TARGET_PENDING: a rejection moves no money; FAILED disagrees" in faults(
        {State.TARGET_PENDING: row}
    )


DEADLINE = "a deadline needs a verb that moves no money and a state for Rejected"
MAX_RETRIES = "max_retries needs a verb that moves no money and a state for Rejected"


@pytest.mark.parametrize(
    ("state", "row"),
    [
        (State.SOURCE_PENDING, DEBIT),
        (State.TARGET_PENDING, CREDIT),
        (State.COMPENSATING, REFUND),
    ],
)
def test_a_verb_that_moves_money_has_no_deadline(state: State, row: Ask) -> None:
    with_deadline = msgspec.structs.replace(row, deadline_s=30.0)
    assert faults({state: with_deadline}) == [f"{state}: {DEADLINE}"]


def test_a_deadline_needs_a_state_for_rejected() -> None:
    row = Ask(Place.SOURCE, "policy", Verb.CHECK, done=Review.HOLDING, deadline_s=1, rests=True)
    assert f"CHECKING: {DEADLINE}" in faults({Review.CHECKING: row}, base=REVIEWED)


def test_max_retries_need_a_verb_that_moves_no_money_and_a_state_for_rejected() -> None:
    three = RetryPolicy(max_retries=3)
    debit = msgspec.structs.replace(DEBIT, retry=three)
    assert faults({State.SOURCE_PENDING: debit}) == [f"SOURCE_PENDING: {MAX_RETRIES}"]
    row = Ask(Place.SOURCE, "policy", Verb.CHECK, Review.HOLDING, retry=three, rests=True)
    assert f"CHECKING: {MAX_RETRIES}" in faults({Review.CHECKING: row}, base=REVIEWED)


def test_a_cycle_without_a_state_that_rests_is_refused() -> None:
    row = Ask(Place.SOURCE, "policy", Verb.CHECK, done=Review.HOLDING, rejected=Review.REFUSED)
    assert faults({Review.CHECKING: row}, base=REVIEWED) == [
        "CHECKING lies on a cycle in which no state rests",
        "HOLDING lies on a cycle in which no state rests",
    ]


def test_a_state_that_leads_to_itself_is_a_cycle() -> None:
    row = Ask(Place.SOURCE, "policy", Verb.CHECK, done=Review.HOLDING, rejected=Review.CHECKING)
    assert "CHECKING lies on a cycle in which no state rests" in faults(
        {Review.CHECKING: row}, base=REVIEWED
    )


def test_a_cycle_of_waypoints_is_refused() -> None:
    cycle: Mapping[StrEnum, Row] = {
        State.INIT: Pass(Place.SOURCE, to=State.SOURCE_PENDING),
        State.SOURCE_PENDING: Pass(Place.SOURCE, to=State.INIT),
    }
    assert "INIT lies on a cycle in which no state rests" in faults(cycle)


# Mistakes in specifications.


def test_a_transfer_is_not_complete_before_the_credit() -> None:
    row = Pass(Place.IN_FLIGHT, to=State.COMMITTED)
    assert "SOURCE_DONE: a waypoint moves no money; COMMITTED disagrees" in faults(
        {State.SOURCE_DONE: row}
    )


def test_money_is_not_refunded_unless_it_was_debited() -> None:
    row = Ask(
        Place.SOURCE, "source", Verb.DEBIT, done=State.SOURCE_DONE, rejected=State.COMPENSATING
    )
    assert "SOURCE_PENDING: a rejection moves no money; COMPENSATING disagrees" in faults(
        {State.SOURCE_PENDING: row}
    )


def test_a_refund_is_not_asked_of_the_target() -> None:
    row = Ask(Place.IN_FLIGHT, "target", Verb.REFUND, done=State.ROLLED_BACK)
    assert faults({State.COMPENSATING: row}) == ["COMPENSATING: refund asks source, not target"]


def test_a_rejected_credit_is_not_an_end_without_a_refund() -> None:
    row = Ask(
        Place.IN_FLIGHT, "target", Verb.CREDIT, done=State.COMMITTED, rejected=State.ROLLED_BACK
    )
    assert "TARGET_PENDING: a rejection moves no money; ROLLED_BACK disagrees" in faults(
        {State.TARGET_PENDING: row}
    )


def test_held_money_is_released_before_the_end() -> None:
    row = Ask(Place.HELD, "person", Verb.CHECK, done=Review.RETURNED, rejected=Review.RELEASING)
    assert "REVIEWING: check leaves money at held; RETURNED disagrees" in faults(
        {Review.REVIEWING: row}, base=REVIEWED
    )


def test_a_debit_does_not_end_a_hold() -> None:
    row = Ask(Place.HELD, "source", Verb.DEBIT, done=Review.PAYING)
    assert faults({Review.CAPTURING: row}, base=REVIEWED) == [
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


def test_a_credit_to_the_target_does_not_end_in_suspense() -> None:
    assert faults({State.COMMITTED: End(Place.SUSPENSE)}) != []


# There is no column for Unknown.


def test_a_flow_cannot_contain_on_timeout_refund() -> None:
    """Only Done and Rejected lead to another state: no other field of a row is a state."""
    state_fields = {f for f in Ask.__struct_fields__ if "StrEnum" in str(Ask.__annotations__[f])}
    assert state_fields == {"done", "rejected"}
    assert not any("timeout" in f or "unknown" in f for f in Ask.__struct_fields__)
    for flow in ALL_FLOWS:
        for edge in flow.answers():
            assert edge.answer in ("done", "rejected")


def test_only_a_check_has_a_deadline() -> None:
    for flow, state in ASKING:
        ask = flow.ask(state)
        assert ask is not None
        assert ask.deadline_s is None or ask.verb is Verb.CHECK


# Verbs and retry policies.


def test_every_verb_but_check_moves_money() -> None:
    assert set(Verb) - set(ACTIONS) == {Verb.CHECK}
    assert all(action.before not in action.after.values() for action in ACTIONS.values())


def test_an_undo_asks_the_role_that_the_money_was_taken_from() -> None:
    roles = {role for verb in TAKING_VERBS for role in ACTIONS[verb].after}
    assert all(set(ACTIONS[verb].after) == roles for verb in UNDO_VERBS)


def test_the_retry_policies_page_at_these_bounds() -> None:
    assert (DEFAULT_RETRY.page_attempts, DEFAULT_RETRY.page_after_s, DEFAULT_RETRY.alarm) == (
        10,
        300.0,
        Alarm.PAGE,
    )
    assert (URGENT.page_after_s, URGENT.alarm) == (60.0, Alarm.CRITICAL)
    assert (NEVER_PAGES.page_attempts, NEVER_PAGES.page_after_s) == (None, None)
    assert all(p.cap_s <= 15.0 for p in (DEFAULT_RETRY, URGENT, NEVER_PAGES))


# Lookups in the table.


def test_arriving_includes_the_waypoints() -> None:
    assert INTERNAL_TRANSFER.arrive("INIT") == ("INIT", "SOURCE_PENDING")
    assert INTERNAL_TRANSFER.arrive("COMMITTED") == ("COMMITTED",)


def test_a_state_is_found_by_the_text_that_the_store_contains() -> None:
    assert INTERNAL_TRANSFER.row("INIT") is INTERNAL_TRANSFER.rows[State.INIT]
    assert INTERNAL_TRANSFER.ask("INIT") is None
    assert INTERNAL_TRANSFER.is_end("FAILED")
    assert not INTERNAL_TRANSFER.is_end("SOURCE_PENDING")


def test_only_the_path_of_the_first_answer_begins_at_creation() -> None:
    assert INTERNAL_TRANSFER.path(0, "SOURCE_PENDING", "SOURCE_DONE") == (
        "INIT",
        "SOURCE_PENDING",
        "SOURCE_DONE",
        "TARGET_PENDING",
    )
    assert REVIEWED.path(3, "CHECKING", "HOLDING") == ("CHECKING", "HOLDING")


def test_an_answer_is_about_the_first_question_on_its_path() -> None:
    path = INTERNAL_TRANSFER.path(0, "SOURCE_PENDING", "SOURCE_DONE")
    assert INTERNAL_TRANSFER.first_ask(path) is INTERNAL_TRANSFER.ask("SOURCE_PENDING")
    assert INTERNAL_TRANSFER.first_ask(["INIT", "of another flow", "COMMITTED"]) is None


def test_the_answers_of_a_state_are_done_rejected_and_a_rejection_that_stays() -> None:
    opening = [edge for edge in INTERNAL_TRANSFER.answers() if edge.verb == "debit"]
    outcomes = {
        ("done", "SOURCE_DONE", "TARGET_PENDING"),
        ("rejected", "FAILED"),
        ("rejected", "SOURCE_PENDING"),
    }
    assert set(opening) == {
        Edge(first=first, path=(*start, *rest), verb="debit", answer=answer)
        for answer, *rest in outcomes
        for first, start in ((True, ["INIT", "SOURCE_PENDING"]), (False, ["SOURCE_PENDING"]))
    }


def test_a_rejection_without_a_next_state_stays() -> None:
    refused = [e for e in INTERNAL_TRANSFER.answers() if e.verb == "refund"]
    assert [(e.first, e.path, e.answer) for e in refused] == [
        (False, ("COMPENSATING", "ROLLED_BACK"), "done"),
        (False, ("COMPENSATING", "COMPENSATING"), "rejected"),
    ]


def test_the_diagram_contains_exactly_the_edges_of_the_flow() -> None:
    for flow in ALL_FLOWS:
        head, begin, *arrows = flow.mermaid().splitlines()
        ends = [state for state, row in flow.rows.items() if isinstance(row, End)]
        assert head == "stateDiagram-v2"
        assert begin.split() == ["[*]", "-->", flow.first]
        assert len(arrows) == len(list(flow.edges())) + len(ends)
        for state, label, to in flow.edges():
            assert f"    {state} --> {to}" + (f" : {label}" if label else "") in arrows
        for state in ends:
            assert f"    {state} --> [*]" in arrows
