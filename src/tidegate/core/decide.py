"""The rule by which an answer becomes a move. Pure, total, and the only one."""

from collections.abc import Set as AbstractSet
from typing import NamedTuple
from uuid import UUID

from msgspec.structs import replace

from tidegate.core.answers import (
    Alarm,
    Answer,
    Done,
    Rejected,
    Unknown,
    bounded,
    bounded_evidence,
)
from tidegate.core.flow import TAKES, UNDOES, Ask, Flow, RetryPolicy, Verb
from tidegate.core.kind import Party, Transfer, TransferKind
from tidegate.core.transfer import SUSPENSE, HistoryEntry, Move, Step, lane_of, step_of

EXPIRED = "EXPIRED"
EXHAUSTED = "EXHAUSTED"
SOONEST_S, LATEST_S = 0.001, 7 * 24 * 3600.0  # When a system may wish to be asked again.
EXEMPLAR = UUID(int=0)
DOUBLINGS = 20  # 2**20 seconds is past every cap; beyond it a float would only grow.


class DecisionContext(NamedTuple):
    """What a decision depends on besides the table, the transfer and the answer."""

    jitter: float = 0.0  # In [0, 1): spreads retries, so that an outage ends without a stampede.
    irreversible: AbstractSet[str] = frozenset()  # Systems that cannot undo.
    actor: str = ""


def decide(flow: Flow, transfer: Transfer, answer: Answer, terms: DecisionContext) -> Move:
    ask = flow.ask(transfer.state)
    assert ask is not None, f"{transfer.id} rests in {transfer.state}, which asks nothing"

    match answer:
        case Done():
            return _go(flow, transfer, answer, ask.done, terms)
        case Unknown() if transfer.expired:
            # The verb moves nothing, so that a late yes has nothing to lose.
            move = decide(flow, transfer, Rejected(EXPIRED), terms)
            return replace(move, alarm=max(move.alarm, answer.alarm))
        case Unknown() if _exhausted(ask, transfer, answer):
            return decide(flow, transfer, Rejected(EXHAUSTED, {"last": answer.reason}), terms)
        case Rejected() if ask.rejected is not None and _undoable(flow, transfer, ask, terms):
            return _go(flow, transfer, answer, ask.rejected, terms)
        case Rejected():
            return _insist(flow, transfer, answer, terms)
        case _:
            return _stay(ask, transfer, answer, terms)


def done_step(flow: Flow, kind: TransferKind, terms: DecisionContext) -> Step:
    """What becomes of every transfer of a kind that is answered with Done.

    The rule is asked about one of them. Nothing in it looks at what is a transfer's own when the
    answer is Done, and nothing of that changes, so that it holds for all.
    """
    return step_of(decide(flow, Transfer(kind, EXEMPLAR, 1, 1), Done(), terms))


def _exhausted(ask: Ask, transfer: Transfer, answer: Unknown) -> bool:
    """Whether it has backed off as often as it may. To wait for a known time is no such thing."""
    most = ask.patience.most
    return most is not None and answer.retry_s is None and transfer.retries >= most


def _undoable(flow: Flow, transfer: Transfer, ask: Ask, terms: DecisionContext) -> bool:
    """Whether the «no» leads to an undo that its system can make."""
    assert ask.rejected is not None
    after = flow.ask(flow.arrive(ask.rejected)[-1])
    if after is None or after.verb not in UNDOES:
        return True
    return transfer.parties[after.role].system not in terms.irreversible


def _go(
    flow: Flow, transfer: Transfer, answer: Done | Rejected, to: str, terms: DecisionContext
) -> Move:
    ask = flow.ask(transfer.state)
    assert ask is not None
    rest = flow.arrive(to)[-1]
    after = flow.ask(rest)
    done = isinstance(answer, Done)
    again = ask.backs_off and not done
    kind = transfer.kind
    # Not by `but` of the transfer, which sorts fields apart: this is worked out very often.
    later = kind.but(
        state=rest,
        lane=lane_of(flow, {template.role: template for template in kind.party_templates}, rest),
        version=kind.version + 1,
        attempts=0,
        retries=kind.retries + again,
        paged=False,  # Somebody was called about the question that is answered now.
        undoes=kind.version if done and ask.verb in TAKES else kind.undoes,
        error=kind.error if isinstance(answer, Done) else bounded(answer.reason),
        expired=False,
    )
    moved = replace(transfer, kind=later, waited_s=0.0)
    return Move(
        transfer,
        moved,
        (_entry(flow, transfer, answer, to, terms),),
        delay_s=_pause(ask if after is None else after, transfer, None, terms) if again else 0.0,
        rests=after is None or after.rests,
        deadline_s=None if after is None else after.deadline_s,
    )


def _insist(flow: Flow, transfer: Transfer, answer: Rejected, terms: DecisionContext) -> Move:
    """A «no» that is not acceptable: a new question, later, and a human is called."""
    ask = flow.ask(transfer.state)
    assert ask is not None
    parties = transfer.parties
    if answer.repoint is not None:
        assert ask.verb is Verb.REFUND, "only a refund can be re-pointed"
        parties = {**parties, SUSPENSE: Party(*answer.repoint)}
    asked_again = transfer.but(
        parties=parties,
        lane=lane_of(flow, parties, transfer.state),
        version=transfer.version + 1,
        attempts=0,
        retries=transfer.retries + 1,
        paged=True,
        error=bounded(answer.reason),
        waited_s=0.0,
        expired=False,
    )
    return Move(
        transfer,
        asked_again,
        (_entry(flow, transfer, answer, transfer.state, terms),),
        # One that was re-pointed has somebody new to ask, who has not refused anything.
        delay_s=0.0
        if answer.repoint
        else backoff(ask.patience, transfer.retries + 1, terms.jitter),
        attempt=bounded(answer.reason),
        alarm=Alarm.NONE if answer.repoint else max(Alarm.PAGE, ask.patience.alarm),
        rests=answer.repoint is None,
        deadline_s=ask.deadline_s,
    )


def _stay(ask: Ask, transfer: Transfer, answer: Unknown, terms: DecisionContext) -> Move:
    patience = ask.patience
    late = patience.page_after_s is not None and transfer.waited_s >= patience.page_after_s
    often = patience.page_attempts is not None and transfer.attempts >= patience.page_attempts
    alarm = max(answer.alarm, patience.alarm if late or often else Alarm.NONE)
    waiting = transfer.but(
        # Who waits for a time that is known has not tried in vain.
        retries=transfer.retries + (answer.retry_s is None),
        paged=transfer.paged or alarm > Alarm.NONE,
    )
    return Move(
        transfer,
        waiting,
        delay_s=_pause(ask, transfer, answer.retry_s, terms),
        attempt=bounded(answer.reason),
        alarm=alarm,
        rests=True,
    )


def _pause(ask: Ask, transfer: Transfer, wished_s: float | None, terms: DecisionContext) -> float:
    if wished_s is not None:
        return min(max(wished_s, SOONEST_S), LATEST_S)
    patience = ask.patience
    # Where pauses are counted, they grow with the count; else with the attempts at this question.
    counted = transfer.retries + 1 if patience.most is not None else transfer.attempts
    return backoff(patience, max(counted, 1), terms.jitter)


def _entry(
    flow: Flow, transfer: Transfer, answer: Done | Rejected, to: str, terms: DecisionContext
) -> HistoryEntry:
    ask = flow.ask(transfer.state)
    assert ask is not None
    return HistoryEntry(
        transfer.version,
        flow.path(transfer.version, transfer.state, to),
        str(ask.verb),
        "done" if isinstance(answer, Done) else "rejected",
        "" if isinstance(answer, Done) else bounded(answer.reason),
        bounded_evidence(answer.evidence),
        terms.actor,
    )


def backoff(patience: RetryPolicy, attempt: int, jitter: float) -> float:
    """Seconds until the next attempt: doubling up to a cap, a part of it left to chance."""
    assert attempt >= 1, "the first attempt is number one"
    full: float = min(patience.first_s * 2 ** min(attempt - 1, DOUBLINGS), patience.cap_s)
    return full * (1 - patience.chance + patience.chance * jitter)
