"""A «no» that a flow cannot accept stays, calls somebody, and is never forgotten."""

import pytest
from msgspec.structs import replace

from tests.core.samples import NO, NOBODY_KNOWS, REVIEWED, TERMS, YES, asked
from tests.core.samples import resting as resting_in
from tidegate.core.answers import Alarm, Rejected
from tidegate.core.decide import DecisionContext, decide
from tidegate.core.flow import URGENT, Flow, RetryPolicy, Verb
from tidegate.core.kind import Party
from tidegate.core.transfer import question_of
from tidegate.flows.deposit import DEPOSIT
from tidegate.flows.internal_transfer import INTERNAL_TRANSFER


def test_a_refused_refund_stays_and_adds_a_version_and_pages() -> None:
    before = resting_in(INTERNAL_TRANSFER, "COMPENSATING", version=2, undoes=0, attempts=3)
    move = decide(INTERNAL_TRANSFER, before, NO, TERMS)
    assert move.after == before.but(version=3, attempts=0, retries=1, paged=True, error=NO.reason)
    assert [entry.path for entry in move.entries] == [("COMPENSATING", "COMPENSATING")]
    assert move.alarm is Alarm.CRITICAL
    assert move.rests
    assert move.delay_s > 0
    assert move.attempt == NO.reason


def test_a_refusal_without_a_column_always_pages() -> None:
    quiet = RetryPolicy(page_attempts=None, page_after_s=None, alarm=Alarm.NONE)
    rows = dict(DEPOSIT.rows)
    entering = asked(DEPOSIT, "ENTERING")
    rows[DEPOSIT.arrive("ENTERING")[0]] = replace(entering, patience=quiet)  # type: ignore[index]
    flow = Flow("quiet", first=DEPOSIT.first, rows=rows)
    assert decide(flow, resting_in(flow, "ENTERING"), NO, TERMS).alarm is Alarm.PAGE


def test_a_refusal_again_and_again_is_asked_less_and_less_often() -> None:
    transfer = resting_in(INTERNAL_TRANSFER, "COMPENSATING", version=2, undoes=0)
    delays = []
    for _ in range(8):
        move = decide(INTERNAL_TRANSFER, transfer, NO, TERMS)
        delays.append(move.delay_s)
        transfer = move.after
    assert delays == sorted(delays)
    assert delays[-1] == 0.75 * URGENT.cap_s
    assert transfer.version == 10
    assert question_of(INTERNAL_TRANSFER, transfer).undoes == 0


IRREVERSIBLE = DecisionContext(irreversible=frozenset({"source system"}))


def test_a_refused_target_stays_where_the_source_cannot_undo() -> None:
    before = resting_in(INTERNAL_TRANSFER, "TARGET_PENDING", version=1, undoes=0)
    move = decide(INTERNAL_TRANSFER, before, NO, IRREVERSIBLE)
    assert (move.after.state, move.after.lane) == ("TARGET_PENDING", "target system")
    assert (move.after.version, move.alarm) == (2, Alarm.CRITICAL)
    assert decide(INTERNAL_TRANSFER, before, NO, TERMS).after.state == "COMPENSATING"


def test_a_question_put_anew_has_its_deadline_anew() -> None:
    late = resting_in(REVIEWED, "REVIEWING", version=2, undoes=1, expired=True)
    move = decide(REVIEWED, late, NOBODY_KNOWS, IRREVERSIBLE)
    assert (move.after.state, move.after.version) == ("REVIEWING", 3)
    assert (move.deadline_s, move.alarm) == (3600.0, Alarm.PAGE)


def test_only_the_system_that_would_have_to_undo_matters() -> None:
    before = resting_in(INTERNAL_TRANSFER, "TARGET_PENDING", version=1, undoes=0)
    others = DecisionContext(irreversible=frozenset({"target system"}))
    assert decide(INTERNAL_TRANSFER, before, NO, others).after.state == "COMPENSATING"


@pytest.mark.parametrize(
    ("flow", "state", "to"),
    [
        (INTERNAL_TRANSFER, "SOURCE_PENDING", "FAILED"),
        (DEPOSIT, "CREDITING", "SUSPENDING"),
        (REVIEWED, "HOLDING", "CHECKING"),
    ],
)
def test_a_refusal_that_leads_to_no_undo_asks_nothing_of_the_source(
    flow: Flow, state: str, to: str
) -> None:
    assert decide(flow, resting_in(flow, state), NO, IRREVERSIBLE).after.state == to


def test_a_rejection_is_remembered_when_its_undo_is_done() -> None:
    refused = decide(INTERNAL_TRANSFER, resting_in(INTERNAL_TRANSFER, "TARGET_PENDING"), NO, TERMS)
    delayed = decide(INTERNAL_TRANSFER, refused.after, NOBODY_KNOWS, TERMS)
    undone = decide(INTERNAL_TRANSFER, delayed.after, YES, TERMS)
    assert (undone.after.state, undone.after.error) == ("ROLLED_BACK", NO.reason)


def test_a_refund_that_is_re_pointed_asks_somebody_else_at_once() -> None:
    refunding = resting_in(INTERNAL_TRANSFER, "COMPENSATING", version=2, undoes=0)
    suspense = ("ledger", "SUSPENSE", 7)
    move = decide(INTERNAL_TRANSFER, refunding, Rejected("CLOSED", repoint=suspense), TERMS)
    assert (move.after.state, move.after.version, move.after.lane) == ("COMPENSATING", 3, "ledger")
    assert (move.delay_s, move.rests, move.alarm) == (0.0, False, Alarm.NONE)
    then = question_of(INTERNAL_TRANSFER, move.after)
    # A credit: the suspense book was never debited, so there is nothing there to undo.
    assert (then.verb, then.undoes, then.opens) == (Verb.CREDIT, None, True)
    assert then.party == Party(*suspense)
    paid = decide(INTERNAL_TRANSFER, move.after, YES, TERMS)
    assert paid.after.state == "ROLLED_BACK"
    assert paid.entries[0].verb == "refund"


def test_only_a_refund_can_be_re_pointed() -> None:
    crediting = resting_in(INTERNAL_TRANSFER, "TARGET_PENDING", version=1, undoes=0)
    astray = Rejected("CLOSED", repoint=("ledger", "SUSPENSE", 7))
    with pytest.raises(AssertionError):
        decide(INTERNAL_TRANSFER, crediting, astray, IRREVERSIBLE)
