"""Internal transfer: eight states, their codes, and the paths through them."""

import pytest

from tests.flows.runs import after_answers
from tidegate.core.answers import Alarm
from tidegate.core.flow import Ask, End, Pass, Place, Verb
from tidegate.flows.internal_transfer import INTERNAL_TRANSFER, State


def test_the_eight_states_have_these_codes() -> None:
    assert {str(state): code for state, code in INTERNAL_TRANSFER.codes.items()} == {
        "INIT": 0,
        "SOURCE_PENDING": 10,
        "SOURCE_DONE": 20,
        "TARGET_PENDING": 30,
        "COMMITTED": 40,
        "FAILED": -10,
        "COMPENSATING": -20,
        "ROLLED_BACK": -30,
    }
    assert set(INTERNAL_TRANSFER.rows) == set(State) == set(INTERNAL_TRANSFER.codes)


def test_init_and_source_done_are_waypoints_and_three_states_are_ends() -> None:
    rows = INTERNAL_TRANSFER.rows
    assert [s for s in rows if isinstance(rows[s], Pass)] == [State.INIT, State.SOURCE_DONE]
    ends = {s: row.place for s, row in rows.items() if isinstance(row, End)}
    assert ends == {
        State.COMMITTED: Place.TARGET,
        State.FAILED: Place.SOURCE,
        State.ROLLED_BACK: Place.SOURCE,
    }


@pytest.mark.parametrize(
    ("answers", "state", "place"),
    [
        ("", "SOURCE_PENDING", Place.SOURCE),
        ("silence", "SOURCE_PENDING", Place.SOURCE),
        ("yes", "TARGET_PENDING", Place.IN_FLIGHT),
        ("no", "FAILED", Place.SOURCE),
        ("yes silence silence silence", "TARGET_PENDING", Place.IN_FLIGHT),
        ("yes yes", "COMMITTED", Place.TARGET),
        ("silence yes silence yes", "COMMITTED", Place.TARGET),
        ("yes no", "COMPENSATING", Place.IN_FLIGHT),
        ("yes no silence", "COMPENSATING", Place.IN_FLIGHT),
        ("yes no no no", "COMPENSATING", Place.IN_FLIGHT),
        ("yes no no yes", "ROLLED_BACK", Place.SOURCE),
        ("yes no yes", "ROLLED_BACK", Place.SOURCE),
    ],
)
def test_each_sequence_of_answers_leads_to_its_state(
    answers: str, state: str, place: Place
) -> None:
    assert after_answers(INTERNAL_TRANSFER, *answers.split())[:2] == (state, place)


def test_the_history_of_a_transfer_shows_its_waypoints() -> None:
    _, _, history = after_answers(INTERNAL_TRANSFER, "yes", "yes")
    assert [entry.path for entry in history] == [
        ("INIT", "SOURCE_PENDING", "SOURCE_DONE", "TARGET_PENDING"),
        ("TARGET_PENDING", "COMMITTED"),
    ]


def test_the_source_is_debited_the_target_credited_and_the_source_refunded() -> None:
    asks = [row for row in INTERNAL_TRANSFER.rows.values() if isinstance(row, Ask)]
    assert [(ask.role, ask.verb) for ask in asks] == [
        ("source", Verb.DEBIT),
        ("target", Verb.CREDIT),
        ("source", Verb.REFUND),
    ]


def test_money_in_flight_for_a_minute_is_a_critical_alarm() -> None:
    for state in INTERNAL_TRANSFER.rows:
        ask = INTERNAL_TRANSFER.ask(state)
        if ask is not None and ask.place is Place.IN_FLIGHT:
            assert (ask.retry.page_after_s, ask.retry.alarm) == (60.0, Alarm.CRITICAL)
