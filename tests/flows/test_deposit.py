"""Deposit: money that has arrived is credited to the target or to suspense, never sent back."""

import pytest

from tests.flows.runs import after_answers
from tidegate.core.flow import UNDO_VERBS, Ask, Place
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
def test_each_sequence_of_answers_leads_to_its_state(
    answers: str, state: str, place: Place
) -> None:
    assert after_answers(DEPOSIT, *answers.split())[:2] == (state, place)


def test_a_deposit_undoes_nothing() -> None:
    asks = [row for row in DEPOSIT.rows.values() if isinstance(row, Ask)]
    assert not any(ask.verb in UNDO_VERBS for ask in asks)


def test_a_deposit_opens_every_account_it_needs() -> None:
    assert all(row.opens for row in DEPOSIT.rows.values() if isinstance(row, Ask))
