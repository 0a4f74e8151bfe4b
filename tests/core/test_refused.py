"""A Rejected that the flow cannot accept: the transfer stays, and an operator is paged."""

import pytest
from msgspec.structs import replace

from tests.core.samples import CONTEXT, NO, REVIEWED, TIMEOUT, YES, ask_of
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
    move = decide(INTERNAL_TRANSFER, before, NO, CONTEXT)
    assert move.after == before.replace(
        version=3, attempts=0, retries=1, paged=True, error=NO.reason
    )
    assert [entry.path for entry in move.entries] == [("COMPENSATING", "COMPENSATING")]
    assert move.alarm is Alarm.CRITICAL
    assert move.rests
    assert move.delay_s > 0
    assert move.attempt == NO.reason


def test_a_rejected_without_a_next_state_always_pages() -> None:
    quiet = RetryPolicy(page_attempts=None, page_after_s=None, alarm=Alarm.NONE)
    rows = dict(DEPOSIT.rows)
    entering = ask_of(DEPOSIT, "ENTERING")
    rows[DEPOSIT.arrive("ENTERING")[0]] = replace(entering, retry=quiet)  # type: ignore[index]
    flow = Flow("quiet", first=DEPOSIT.first, rows=rows)
    assert decide(flow, resting_in(flow, "ENTERING"), NO, CONTEXT).alarm is Alarm.PAGE


def test_repeated_rejections_are_asked_again_after_growing_pauses() -> None:
    transfer = resting_in(INTERNAL_TRANSFER, "COMPENSATING", version=2, undoes=0)
    delays = []
    for _ in range(8):
        move = decide(INTERNAL_TRANSFER, transfer, NO, CONTEXT)
        delays.append(move.delay_s)
        transfer = move.after
    assert delays == sorted(delays)
    assert delays[-1] == 0.75 * URGENT.cap_s
    assert transfer.version == 10
    assert question_of(INTERNAL_TRANSFER, transfer).undoes == 0


IRREVERSIBLE = DecisionContext(irreversible=frozenset({"source system"}))


def test_a_rejected_credit_stays_if_the_source_cannot_undo() -> None:
    before = resting_in(INTERNAL_TRANSFER, "TARGET_PENDING", version=1, undoes=0)
    move = decide(INTERNAL_TRANSFER, before, NO, IRREVERSIBLE)
    assert (move.after.state, move.after.lane) == ("TARGET_PENDING", "target system")
    assert (move.after.version, move.alarm) == (2, Alarm.CRITICAL)
    assert decide(INTERNAL_TRANSFER, before, NO, CONTEXT).after.state == "COMPENSATING"


def test_a_question_under_a_new_key_gets_a_new_deadline() -> None:
    late = resting_in(REVIEWED, "REVIEWING", version=2, undoes=1, expired=True)
    move = decide(REVIEWED, late, TIMEOUT, IRREVERSIBLE)
    assert (move.after.state, move.after.version) == ("REVIEWING", 3)
    assert (move.deadline_s, move.alarm) == (3600.0, Alarm.PAGE)


def test_only_the_system_that_would_undo_must_be_reversible() -> None:
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
def test_a_rejected_without_an_undo_ignores_that_the_source_cannot_undo(
    flow: Flow, state: str, to: str
) -> None:
    assert decide(flow, resting_in(flow, state), NO, IRREVERSIBLE).after.state == to


def test_the_reason_of_a_rejection_is_kept_after_its_undo() -> None:
    refused = decide(
        INTERNAL_TRANSFER, resting_in(INTERNAL_TRANSFER, "TARGET_PENDING"), NO, CONTEXT
    )
    delayed = decide(INTERNAL_TRANSFER, refused.after, TIMEOUT, CONTEXT)
    undone = decide(INTERNAL_TRANSFER, delayed.after, YES, CONTEXT)
    assert (undone.after.state, undone.after.error) == ("ROLLED_BACK", NO.reason)


def test_a_re_pointed_refund_asks_the_suspense_book_at_once() -> None:
    refunding = resting_in(INTERNAL_TRANSFER, "COMPENSATING", version=2, undoes=0)
    suspense = ("ledger", "SUSPENSE", 7)
    move = decide(INTERNAL_TRANSFER, refunding, Rejected("CLOSED", repoint=suspense), CONTEXT)
    assert (move.after.state, move.after.version, move.after.lane) == ("COMPENSATING", 3, "ledger")
    assert (move.delay_s, move.rests, move.alarm) == (0.0, False, Alarm.NONE)
    question = question_of(INTERNAL_TRANSFER, move.after)
    # A credit and not a refund, because the suspense book was never debited.
    assert (question.verb, question.undoes, question.opens) == (Verb.CREDIT, None, True)
    assert question.party == Party(*suspense)
    paid = decide(INTERNAL_TRANSFER, move.after, YES, CONTEXT)
    assert paid.after.state == "ROLLED_BACK"
    assert paid.entries[0].verb == "refund"


def test_only_a_refund_can_be_re_pointed() -> None:
    crediting = resting_in(INTERNAL_TRANSFER, "TARGET_PENDING", version=1, undoes=0)
    rejected = Rejected("CLOSED", repoint=("ledger", "SUSPENSE", 7))
    with pytest.raises(AssertionError):
        decide(INTERNAL_TRANSFER, crediting, rejected, IRREVERSIBLE)
