"""External withdrawal: debited money leaves the books or returns to its source."""

import pytest

from tests.flows.runs import after_answers
from tidegate.core.flow import Ask, Place, Verb
from tidegate.flows.external_withdrawal import EXTERNAL_WITHDRAWAL


@pytest.mark.parametrize(
    ("answers", "state", "place"),
    [
        ("", "DEBITING", Place.SOURCE),
        ("no", "FAILED", Place.SOURCE),
        ("yes silence", "LEAVING", Place.IN_FLIGHT),
        ("yes yes", "COMPLETED", Place.TARGET),
        ("yes no", "RETURNING", Place.IN_FLIGHT),
        ("yes no no", "RETURNING", Place.IN_FLIGHT),
        ("yes no yes", "RETURNED", Place.SOURCE),
    ],
)
def test_each_sequence_of_answers_leads_to_its_state(
    answers: str, state: str, place: Place
) -> None:
    assert after_answers(EXTERNAL_WITHDRAWAL, *answers.split())[:2] == (state, place)


def test_only_the_outside_book_is_opened() -> None:
    asks = [row for row in EXTERNAL_WITHDRAWAL.rows.values() if isinstance(row, Ask)]
    assert [ask.verb for ask in asks if ask.opens] == [Verb.CREDIT]
