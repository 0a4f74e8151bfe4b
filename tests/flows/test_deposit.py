"""Deposit: money that has arrived is credited or kept in suspense, and is never sent back."""

import pytest

from tests.flows.lives import live
from tidegate.core.flow import UNDOES, Ask, Place
from tidegate.flows.deposit import DEPOSIT


@pytest.mark.parametrize(
    ("answers", "state", "place"),
    [
        ("", "ENTERING", Place.SOURCE),
        ("no", "ENTERING", Place.SOURCE),
        ("yes", "CREDITING", Place.IN_FLIGHT),
        ("yes silence", "CREDITING", Place.IN_FLIGHT),
        ("yes yes", "COMPLETED", Place.TARGET),
        ("yes no", "SUSPENDING", Place.IN_FLIGHT),
        ("yes no no", "SUSPENDING", Place.IN_FLIGHT),
        ("yes no yes", "SUSPENDED", Place.SUSPENSE),
    ],
)
def test_each_run_of_answers_leads_where_it_should(answers: str, state: str, place: Place) -> None:
    assert live(DEPOSIT, *answers.split())[:2] == (state, place)


def test_nothing_in_a_deposit_is_undone() -> None:
    asks = [row for row in DEPOSIT.rows.values() if isinstance(row, Ask)]
    assert not any(ask.verb in UNDOES for ask in asks)


def test_a_deposit_opens_every_account_it_needs() -> None:
    assert all(row.opens for row in DEPOSIT.rows.values() if isinstance(row, Ask))
