"""The rule that turns an answer into a move: a pure function, defined for every answer."""

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
from tidegate.core.flow import TAKING_VERBS, UNDO_VERBS, Ask, Flow, RetryPolicy, Verb
from tidegate.core.kind import Party, Transfer, TransferKind
from tidegate.core.transfer import SUSPENSE, HistoryEntry, Move, Step, lane_of, step_of

EXPIRED = "EXPIRED"
EXHAUSTED = "EXHAUSTED"
MIN_RETRY_S, MAX_RETRY_S = 0.001, 7 * 24 * 3600.0  # Bounds of a system's own `retry_s`.
SAMPLE_ID = UUID(int=0)
MAX_DOUBLINGS = 20  # 2**20 seconds is above every cap. The bound keeps the float small.


class DecisionContext(NamedTuple):
    """What a decision depends on besides the flow table, the transfer and the answer."""

    jitter: float = 0.0  # In [0, 1): spreads retries, so that they do not all come at once.
    irreversible: AbstractSet[str] = frozenset()  # The names of systems that cannot undo.
    actor: str = ""


def decide(flow: Flow, transfer: Transfer, answer: Answer, context: DecisionContext) -> Move:
    ask = flow.ask(transfer.state)
    assert ask is not None, f"{transfer.id} rests in {transfer.state}, which asks nothing"

    match answer:
        case Done():
            return _advance(flow, transfer, answer, ask.done, context)
        case Unknown() if transfer.expired:
            # A verb with a deadline moves no money, so a Done that comes too late loses none.
            move = decide(flow, transfer, Rejected(EXPIRED), context)
            return replace(move, alarm=max(move.alarm, answer.alarm))
        case Unknown() if _exhausted(ask, transfer, answer):
            return decide(flow, transfer, Rejected(EXHAUSTED, {"last": answer.reason}), context)
        case Rejected() if ask.rejected is not None and _can_undo(flow, transfer, ask, context):
            return _advance(flow, transfer, answer, ask.rejected, context)
        case Rejected():
            return _ask_again(flow, transfer, answer, context)
        case _:
            return _wait(ask, transfer, answer, context)


def done_step(flow: Flow, kind: TransferKind, context: DecisionContext) -> Step:
    """The step of every transfer of a kind after a Done.

    It is decided for one sample. When the answer is Done, `decide` neither reads nor changes the
    fields that belong to a single transfer, so the result holds for the whole kind.
    """
    return step_of(decide(flow, Transfer(kind, SAMPLE_ID, 1, 1), Done(), context))


def _exhausted(ask: Ask, transfer: Transfer, answer: Unknown) -> bool:
    """Whether all retries are used. Waiting until a time that the system names is not a retry."""
    limit = ask.retry.max_retries
    return limit is not None and answer.retry_s is None and transfer.retries >= limit


def _can_undo(flow: Flow, transfer: Transfer, ask: Ask, context: DecisionContext) -> bool:
    """Whether the system that would have to undo after this Rejected can do so."""
    assert ask.rejected is not None
    next_ask = flow.ask(flow.arrive(ask.rejected)[-1])
    if next_ask is None or next_ask.verb not in UNDO_VERBS:
        return True
    return transfer.parties[next_ask.role].system not in context.irreversible


def _advance(
    flow: Flow, transfer: Transfer, answer: Done | Rejected, to: str, context: DecisionContext
) -> Move:
    ask = flow.ask(transfer.state)
    assert ask is not None
    state = flow.arrive(to)[-1]
    next_ask = flow.ask(state)
    done = isinstance(answer, Done)
    retry = ask.backs_off and not done
    kind = transfer.kind
    # Not by `transfer.replace`, which has to separate two groups of fields: this runs very often.
    new_kind = kind.replace(
        state=state,
        lane=lane_of(flow, {template.role: template for template in kind.party_templates}, state),
        version=kind.version + 1,
        attempts=0,
        retries=kind.retries + retry,
        paged=False,  # A page is about one question, and that question has its answer now.
        undoes=kind.version if done and ask.verb in TAKING_VERBS else kind.undoes,
        error=kind.error if isinstance(answer, Done) else bounded(answer.reason),
        expired=False,
    )
    return Move(
        transfer,
        replace(transfer, kind=new_kind, waited_s=0.0),
        (_entry(flow, transfer, answer, to, context),),
        delay_s=_pause_s(next_ask or ask, transfer, None, context) if retry else 0.0,
        rests=next_ask is None or next_ask.rests,
        deadline_s=None if next_ask is None else next_ask.deadline_s,
    )


def _ask_again(flow: Flow, transfer: Transfer, answer: Rejected, context: DecisionContext) -> Move:
    """The flow cannot accept this Rejected: ask again later under a new key, and page."""
    ask = flow.ask(transfer.state)
    assert ask is not None
    parties = transfer.parties
    if answer.repoint is not None:
        assert ask.verb is Verb.REFUND, "only a refund can be re-pointed"
        parties = {**parties, SUSPENSE: Party(*answer.repoint)}
    after = transfer.replace(
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
        after,
        (_entry(flow, transfer, answer, transfer.state, context),),
        # After a re-point another system is asked, which has not refused yet: ask at once.
        delay_s=0.0 if answer.repoint else backoff(ask.retry, transfer.retries + 1, context.jitter),
        attempt=bounded(answer.reason),
        alarm=Alarm.NONE if answer.repoint else max(Alarm.PAGE, ask.retry.alarm),
        rests=answer.repoint is None,
        deadline_s=ask.deadline_s,
    )


def _wait(ask: Ask, transfer: Transfer, answer: Unknown, context: DecisionContext) -> Move:
    policy = ask.retry
    late = policy.page_after_s is not None and transfer.waited_s >= policy.page_after_s
    often = policy.page_attempts is not None and transfer.attempts >= policy.page_attempts
    alarm = max(answer.alarm, policy.alarm if late or often else Alarm.NONE)
    after = transfer.replace(
        # Waiting until a time that the system names does not count as a retry.
        retries=transfer.retries + (answer.retry_s is None),
        paged=transfer.paged or alarm > Alarm.NONE,
    )
    return Move(
        transfer,
        after,
        delay_s=_pause_s(ask, transfer, answer.retry_s, context),
        attempt=bounded(answer.reason),
        alarm=alarm,
        rests=True,
    )


def _pause_s(
    ask: Ask, transfer: Transfer, retry_s: float | None, context: DecisionContext
) -> float:
    if retry_s is not None:
        return min(max(retry_s, MIN_RETRY_S), MAX_RETRY_S)
    policy = ask.retry
    # With a limit of retries the pause grows with the retries of the transfer, else with the
    # attempts at this question.
    attempt = transfer.retries + 1 if policy.max_retries is not None else transfer.attempts
    return backoff(policy, max(attempt, 1), context.jitter)


def _entry(
    flow: Flow, transfer: Transfer, answer: Done | Rejected, to: str, context: DecisionContext
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
        context.actor,
    )


def backoff(policy: RetryPolicy, attempt: int, jitter: float) -> float:
    """Seconds until the next attempt. They double up to a cap, and a part of them is random."""
    assert attempt >= 1, "the first attempt is number one"
    full_s: float = min(policy.first_s * 2 ** min(attempt - 1, MAX_DOUBLINGS), policy.cap_s)
    return full_s * (1 - policy.jitter + policy.jitter * jitter)
