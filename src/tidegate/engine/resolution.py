"""Two operators answer a stuck question. The rules of the flow still decide what follows."""

from msgspec.structs import replace

from tidegate.core.answers import Answer, Done, Rejected, Unknown, Unreachable
from tidegate.core.flow import Verb
from tidegate.core.kind import Transfer
from tidegate.core.refusals import Doubt, Refusal
from tidegate.core.transfer import Question, question_of
from tidegate.engine.gate import Gate
from tidegate.engine.request_forms import LEDGER
from tidegate.engine.step import ask, record_answers
from tidegate.engine.write_batch import WriteBatch
from tidegate.store import operator_reads, resolutions
from tidegate.store.resolutions import Proposal, Resolution
from tidegate.systems.ledger import SUSPENSE

KINDS = ("done", "rejected", "suspense")
TRIES = 5  # An engine may ask the same question at the same moment.
ALREADY_ANSWERED = "the question has already been answered"


async def propose(gate: Gate, transfer: Transfer, proposal: Proposal) -> int | Refusal:
    """Store the proposal of one operator, if the transfer has an open question that it answers."""
    if proposal.kind not in KINDS or not proposal.reason or not proposal.evidence:
        return Refusal.INVALID_REQUEST
    # The flow decides what an answer leads to, so this process must know the flow.
    if transfer.flow not in gate.engine.context.flows or not _is_open(gate, transfer, proposal):
        return Refusal.INVALID_REQUEST
    return await resolutions.propose(gate.store, proposal)


async def confirm(gate: Gate, resolution: Resolution, confirmed_by: str) -> str:
    """Carry out the proposal, confirmed by a second operator. Return the outcome as text."""
    proposal = resolution.proposal
    if (missing := await _missing(gate, proposal)) is not None:
        return f"this process does not {missing}; confirm at a process that does"
    second = await resolutions.confirm(gate.store, resolution.id, confirmed_by)
    if second is None:
        return "you proposed this yourself, or it is already closed; a second person must confirm"
    actor = f"{proposal.proposed_by} and {second}"
    for _ in range(TRIES):
        transfer = await operator_reads.one(gate.store, proposal.transfer_id)
        assert transfer is not None, "a proposal is about a transfer that exists"
        if not _is_open(gate, transfer, proposal):
            await resolutions.close(gate.store, resolution.id, ALREADY_ANSWERED)
            return ALREADY_ANSWERED
        answer = await _answer(gate, transfer, proposal)
        if isinstance(answer, Unknown):
            problem = "the system does not confirm that it refuses the operation"
            return f"{problem}, so nothing was changed: {answer.reason}"
        assert transfer.lane is not None, "an open question has a lane"
        work = WriteBatch([transfer], [answer], transfer.lane, actor)
        await record_answers(gate.engine.context, work)
        if await _is_recorded(gate, transfer, actor):
            outcome = "done" if isinstance(answer, Done) else f"rejected: {answer.reason}"
            await resolutions.close(gate.store, resolution.id, outcome)
            return outcome
    return "an engine was asking the same question; confirm once more"


async def _missing(gate: Gate, proposal: Proposal) -> str | None:
    """What this process lacks to carry out the proposal; None if it lacks nothing."""
    transfer, context = (
        await operator_reads.one(gate.store, proposal.transfer_id),
        gate.engine.context,
    )
    assert transfer is not None, "a proposal is about a transfer that exists"
    if transfer.flow not in context.flows:
        return f"know the flow {transfer.flow}"
    if proposal.kind == "done":
        return None
    # The asked system is made to refuse. Whether the refusal leads to an undo depends on whether
    # the other system can undo, and only a process that has that system knows this.
    systems = {party.system for party in transfer.parties.values()}
    absent = sorted(systems - context.outside.keys() - context.local.keys())
    return f"have the system {absent[0]}" if absent else None


def _is_open(gate: Gate, transfer: Transfer, proposal: Proposal) -> bool:
    """Whether the proposal is about the open question of the transfer."""
    if transfer.lane is None:
        return False
    if proposal.kind == "suspense":
        # A refused refund is asked again under a new key every few seconds. A proposal about it
        # also applies to the next key, until the refund is done or redirected.
        refunding = _question(gate, transfer).verb is Verb.REFUND
        return refunding and proposal.version <= transfer.version
    return proposal.version == transfer.version


async def _is_recorded(gate: Gate, transfer: Transfer, actor: str) -> bool:
    """False if an engine recorded its answer first. Then the operators' answer was not used."""
    answers = await operator_reads.history(gate.store, transfer.id)
    return any(a.version == transfer.version and a.actor == actor for a in answers)


async def _answer(gate: Gate, transfer: Transfer, proposal: Proposal) -> Answer:
    if proposal.kind == "done":
        return Done(proposal.evidence | {"reason": proposal.reason})
    # A rejection by operators must be made true first: the system must refuse the question for
    # ever. If the system has already decided, its decision is used.
    reply = await _void(gate, transfer)
    if isinstance(reply, Done | Unknown) and not _is_retired(reply):
        return reply
    if proposal.kind == "suspense":
        suspense = (LEDGER, SUSPENSE, transfer.owner)
        return Rejected(proposal.reason, proposal.evidence, repoint=suspense)
    return Rejected(proposal.reason, proposal.evidence)


def _is_retired(answer: Answer) -> bool:
    """Below its floor a system does and remembers nothing, so the operators' evidence is used."""
    return isinstance(answer, Unknown) and answer.reason == Doubt.RETIRED


async def _void(gate: Gate, transfer: Transfer) -> Answer:
    """Make the system refuse the open question. Return its answer."""
    question = replace(_question(gate, transfer), void=True)
    context, lane = gate.engine.context, transfer.lane
    assert lane is not None
    if lane in context.local:
        async with context.store.transaction() as tx:
            [answer] = await context.local[lane].ask(tx, [question])
        return answer
    try:
        answers = await ask(context.outside[lane], [question])
    except Unreachable as fault:
        return Unknown(str(fault))
    return answers if isinstance(answers, Unknown) else answers[0]


def _question(gate: Gate, transfer: Transfer) -> Question:
    return question_of(gate.engine.context.flows[transfer.flow], transfer)
