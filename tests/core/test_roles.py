"""Roles: checked when a flow is imported, and complete in every request."""

from enum import StrEnum

import pytest
from msgspec.structs import replace

from tests.core.samples import REVIEWED, Review, recheck, resting
from tidegate.core.answers import Done
from tidegate.core.decide import DecisionContext, decide
from tidegate.core.flow import ACTIONS, Ask, End, Flow, Place, Row, Verb
from tidegate.core.kind import Party
from tidegate.core.refusals import Refusal
from tidegate.core.request import Request, fee_veto
from tidegate.core.transfer import question_of
from tidegate.flows import FLOWS
from tidegate.flows.internal_transfer import INTERNAL_TRANSFER
from tidegate.store.flow_checks import checksum

LOCAL = frozenset({"ledger"})


class Sale(StrEnum):
    HOLDING = "HOLDING"
    CHECKING = "CHECKING"
    CAPTURING = "CAPTURING"
    RELEASING = "RELEASING"
    PAID = "PAID"
    NEVER = "NEVER"


def test_a_capture_does_not_pay_the_target() -> None:
    rows: dict[StrEnum, Row] = {
        Sale.HOLDING: Ask(Place.SOURCE, "source", Verb.HOLD, Sale.CHECKING, Sale.NEVER),
        Sale.CHECKING: Ask(Place.HELD, "checks", Verb.CHECK, Sale.CAPTURING, Sale.RELEASING),
        Sale.CAPTURING: Ask(Place.HELD, "source", Verb.CAPTURE, Sale.PAID),
        Sale.RELEASING: Ask(Place.HELD, "source", Verb.RELEASE, Sale.NEVER),
        Sale.PAID: End(Place.TARGET),
        Sale.NEVER: End(Place.SOURCE),
    }
    with pytest.raises(TypeError, match="capture leaves money at in flight; PAID disagrees"):
        Flow("sale", Sale.HOLDING, rows, roles=frozenset({"checks"}))


def test_only_a_credit_moves_money_to_a_target() -> None:
    crediting = {verb for verb, action in ACTIONS.items() if Place.TARGET in action.after.values()}
    assert crediting == {Verb.CREDIT}


def test_the_refund_of_captured_money_names_the_capture() -> None:
    capturing = resting(REVIEWED, Review.CAPTURING, version=3, undoes=1)
    assert question_of(REVIEWED, capturing).undoes == 1
    paying = decide(REVIEWED, capturing, Done(), DecisionContext()).after
    refunding = paying.replace(state=str(Review.REFUNDING), version=5)
    assert question_of(REVIEWED, refunding).undoes == 3


def test_an_undeclared_role_is_refused_at_import() -> None:
    with pytest.raises(TypeError, match="CHECKING: the role policy is not declared"):
        Flow("reviewed", REVIEWED.first, REVIEWED.rows, roles=frozenset({"polcy", "person"}))


def test_a_declared_role_that_no_state_asks_is_refused_at_import() -> None:
    with pytest.raises(TypeError, match="the role judge is declared, but no state asks it"):
        Flow("reviewed", REVIEWED.first, REVIEWED.rows, roles=REVIEWED.roles | {"judge"})


def test_a_fee_needs_a_target_that_is_credited() -> None:
    class CheckOnly(StrEnum):
        CHECKING = "CHECKING"
        ENDED = "ENDED"

    rows: dict[StrEnum, Row] = {
        CheckOnly.CHECKING: Ask(
            Place.SOURCE, "source", Verb.CHECK, CheckOnly.ENDED, CheckOnly.ENDED
        ),
        CheckOnly.ENDED: End(Place.SOURCE),
    }
    with pytest.raises(TypeError, match="a fee is taken from the credit of a target"):
        Flow("check_only", CheckOnly.CHECKING, rows, roles=frozenset({"fees"}))


PARTIES = {
    "source": Party("ledger", "FUNDING", 7),
    "target": Party("ledger", "OUTSIDE", 7),
    "policy": Party("desk", "", 7),
    "person": Party("desk", "", 7),
    "fees": Party("ledger", "FEES", 7),
}
REQUEST = Request(7, "reviewed", PARTIES, 3, 100, "c-1", fee=5)


def test_a_request_with_every_role_and_a_fee_is_accepted() -> None:
    assert recheck(REQUEST, REVIEWED, LOCAL) is None
    assert fee_veto(REQUEST, REVIEWED) is None
    assert REVIEWED.required_roles == PARTIES.keys()


@pytest.mark.parametrize("role", sorted(PARTIES))
def test_a_request_that_lacks_a_role_is_refused(role: str) -> None:
    fewer = {other: party for other, party in PARTIES.items() if other != role}
    lacking = replace(REQUEST, parties=fewer)
    assert recheck(lacking, REVIEWED, LOCAL) is Refusal.INVALID_PARTIES


def test_a_request_with_a_role_that_the_flow_does_not_have_is_refused() -> None:
    """A suspense party in a request would get the money that is to be refunded."""
    more = {**PARTIES, "suspense": Party("ledger", "SUSPENSE", 7)}
    assert recheck(replace(REQUEST, parties=more), REVIEWED, LOCAL) is Refusal.INVALID_PARTIES


@pytest.mark.parametrize(
    "fees",
    [
        Party("ledger", "FUNDING", 7),  # Another book.
        Party("ledger", "FEES", 8),  # Another owner.
        Party("trading", "FEES", 7),  # Another system than the target.
    ],
)
def test_the_fees_party_is_the_owners_fees_book_in_the_system_of_the_target(fees: Party) -> None:
    wrong = replace(REQUEST, parties={**PARTIES, "fees": fees})
    assert recheck(wrong, REVIEWED, LOCAL) is Refusal.UNSUPPORTED_ACCOUNT_TYPE


def test_a_target_outside_our_database_takes_no_fee() -> None:
    outside = {**PARTIES, "target": Party("core", "SPOT", 7), "fees": Party("core", "FEES", 7)}
    refused = recheck(replace(REQUEST, parties=outside), REVIEWED, LOCAL)
    assert refused is Refusal.UNSUPPORTED_ACCOUNT_TYPE


@pytest.mark.parametrize(
    ("fee", "refusal"),
    [(-1, Refusal.INVALID_FEE), (0, None), (99, None), (100, Refusal.INVALID_FEE)],
)
def test_a_fee_is_from_zero_to_below_the_amount(fee: int, refusal: Refusal | None) -> None:
    assert fee_veto(replace(REQUEST, fee=fee), REVIEWED) is refusal


def test_a_flow_without_the_role_fees_takes_no_fee() -> None:
    for flow in FLOWS.values():
        assert fee_veto(Request(7, flow.name, {}, 3, 100, fee=1), flow) is Refusal.INVALID_FEE


def test_the_fee_is_not_part_of_the_fingerprint() -> None:
    assert REQUEST.fingerprint() == replace(REQUEST, fee=7).fingerprint()


def test_only_the_credit_of_the_target_carries_the_fee() -> None:
    fees_by_state = {}
    for state in (
        Review.HOLDING,
        Review.CAPTURING,
        Review.PAYING,
        Review.REFUNDING,
        Review.RELEASING,
    ):
        transfer = resting(REVIEWED, state, parties=PARTIES, fee=5, undoes=0)
        question = question_of(REVIEWED, transfer)
        fees_by_state[state] = (question.amount, question.fee, question.fees)
    without_fee = (1_000_000, 0, None)
    paying = (1_000_000, 5, PARTIES["fees"])
    assert fees_by_state.pop(Review.PAYING) == paying
    assert set(fees_by_state.values()) == {without_fee}
    suspended = {**PARTIES, "suspense": Party("ledger", "SUSPENSE", 7)}
    refund = resting(REVIEWED, Review.REFUNDING, parties=suspended, fee=5, undoes=0)
    to_suspense = question_of(REVIEWED, refund)
    assert (to_suspense.verb, to_suspense.amount, to_suspense.fee) == (Verb.CREDIT, 1_000_000, 0)


def test_the_role_fees_changes_the_checksum_of_a_flow() -> None:
    without = Flow("reviewed", REVIEWED.first, REVIEWED.rows, roles=REVIEWED.roles - {"fees"})
    assert checksum(without) != checksum(REVIEWED)


def test_every_built_in_flow_requires_these_roles() -> None:
    assert {name: sorted(flow.required_roles) for name, flow in FLOWS.items()} == {
        "internal_transfer": ["source", "target"],
        "deposit": ["source", "suspense", "target"],
        "external_withdrawal": ["source", "target"],
        "pool_transfer": ["allowance", "checks", "source", "target"],
        "member_transfer": ["allowance", "source", "target"],
    }
    assert INTERNAL_TRANSFER.roles == frozenset()
