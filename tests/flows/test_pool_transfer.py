"""Pool transfer and member transfer: checked, then executed in one transaction or rejected."""

import pytest

from tests.core.samples import CONTEXT, resting
from tests.flows.runs import after_answers
from tidegate.core.answers import Rejected, Unknown
from tidegate.core.decide import EXHAUSTED, EXPIRED, decide
from tidegate.core.flow import ACTIONS, Ask, Place
from tidegate.flows.member_transfer import MEMBER_TRANSFER
from tidegate.flows.pool_transfer import EXPIRES_S, POOL_TRANSFER

NO_MONEY = Unknown("INSUFFICIENT_BALANCE")


@pytest.mark.parametrize(
    ("answers", "state", "place"),
    [
        ("", "CHECKING", Place.SOURCE),
        ("silence", "CHECKING", Place.SOURCE),
        ("no", "REJECTED", Place.SOURCE),
        ("yes", "APPROVED", Place.SOURCE),
        ("yes no", "CHECKING", Place.SOURCE),
        ("yes yes", "DEBITING", Place.SOURCE),
        ("yes yes no", "CHECKING", Place.SOURCE),
        ("yes yes yes", "CREDITING", Place.IN_FLIGHT),
        ("yes yes yes yes", "COMPLETED", Place.TARGET),
        ("yes yes yes no", "RETURNING", Place.IN_FLIGHT),
        ("yes yes yes no yes", "REJECTED", Place.SOURCE),
        ("yes no yes yes yes yes", "COMPLETED", Place.TARGET),
    ],
)
def test_each_sequence_of_answers_leads_to_its_state(
    answers: str, state: str, place: Place
) -> None:
    assert after_answers(POOL_TRANSFER, *answers.split())[:2] == (state, place)


@pytest.mark.parametrize(
    ("answers", "state", "place"),
    [
        ("", "ALLOWING", Place.SOURCE),
        ("no", "REFUSED", Place.SOURCE),
        ("yes no", "REFUSED", Place.SOURCE),
        ("yes yes yes", "COMPLETED", Place.TARGET),
        ("yes yes no", "RETURNING", Place.IN_FLIGHT),
        ("yes yes no yes", "REFUSED", Place.SOURCE),
    ],
)
def test_each_sequence_of_answers_to_a_member_transfer_leads_to_its_state(
    answers: str, state: str, place: Place
) -> None:
    assert after_answers(MEMBER_TRANSFER, *answers.split())[:2] == (state, place)


def test_a_pool_transfer_expires_only_while_it_is_checked() -> None:
    asks = {str(s): row for s, row in POOL_TRANSFER.rows.items() if isinstance(row, Ask)}
    assert {s: ask.deadline_s for s, ask in asks.items() if ask.deadline_s} == {
        "CHECKING": EXPIRES_S
    }
    assert asks["CHECKING"].verb not in ACTIONS


def test_a_late_pool_transfer_is_rejected_as_expired() -> None:
    late = resting(POOL_TRANSFER, "CHECKING", version=0, expired=True)
    move = decide(POOL_TRANSFER, late, NO_MONEY, CONTEXT)
    assert (move.after.state, move.after.error) == ("REJECTED", EXPIRED)


def test_a_pool_transfer_is_rejected_after_ten_retries() -> None:
    transfer, pauses = resting(POOL_TRANSFER, "CHECKING", version=0), list[float]()
    while transfer.lane is not None:
        move = decide(POOL_TRANSFER, transfer, NO_MONEY, CONTEXT)
        transfer = move.after
        pauses += [move.delay_s] if not move.entries else []
    assert pauses == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]
    assert (transfer.state, transfer.error, transfer.retries) == ("REJECTED", EXHAUSTED, 10)
    assert dict(move.entries[0].evidence) == {"last": "INSUFFICIENT_BALANCE"}


def test_waiting_until_a_known_time_is_not_a_retry() -> None:
    waiting = resting(POOL_TRANSFER, "CHECKING", version=0, retries=10)
    move = decide(POOL_TRANSFER, waiting, Unknown("DAILY_LIMIT", retry_s=7200.0), CONTEXT)
    assert (move.entries, move.delay_s, move.after.retries) == ((), 7200.0, 10)
    assert decide(POOL_TRANSFER, waiting, NO_MONEY, CONTEXT).after.state == "REJECTED"


def test_the_next_round_continues_the_count_of_retries() -> None:
    approved = resting(POOL_TRANSFER, "APPROVED", version=1, retries=7)
    back = decide(POOL_TRANSFER, approved, Rejected("DAILY_LIMIT_EXCEEDED"), CONTEXT)
    assert (back.after.state, back.after.retries, back.delay_s) == ("CHECKING", 8, 128)
    assert decide(POOL_TRANSFER, back.after, NO_MONEY, CONTEXT).delay_s == 256
