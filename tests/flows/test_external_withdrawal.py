"""External withdrawal: money leaves the books once it is debited, or comes home."""

import pytest

from tests.flows.lives import live
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
def test_each_run_of_answers_leads_where_it_should(answers: str, state: str, place: Place) -> None:
    assert live(EXTERNAL_WITHDRAWAL, *answers.split())[:2] == (state, place)


def test_only_the_book_of_what_lies_outside_is_opened() -> None:
    asks = [row for row in EXTERNAL_WITHDRAWAL.rows.values() if isinstance(row, Ask)]
    assert [ask.verb for ask in asks if ask.opens] == [Verb.CREDIT]
