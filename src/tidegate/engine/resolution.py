"""Two people give a stuck question its answer. The flow's rules still decide what follows."""

from msgspec.structs import replace

from tidegate.core.answers import Answer, Done, Rejected, Unknown, Unreachable
from tidegate.core.flow import Verb
from tidegate.core.kind import Transfer
from tidegate.core.refusals import Doubt, Refusal
from tidegate.core.transfer import Question, question_of
from tidegate.engine.gate import Gate
from tidegate.engine.request_forms import LEDGER
from tidegate.engine.step import ask, conclude
from tidegate.engine.write_batch import WriteBatch
from tidegate.store import operator_reads, resolutions
from tidegate.store.resolutions import Proposal, Resolution
from tidegate.systems.ledger import SUSPENSE

KINDS = ("done", "rejected", "suspense")
TRIES = 5  # Against an engine that asks the same question at the same moment.
MEANWHILE = "the question was answered meanwhile"


async def propose(gate: Gate, transfer: Transfer, proposal: Proposal) -> int | Refusal:
    """Take down what one person says, if there is a question that it could answer."""
    if proposal.kind not in KINDS or not proposal.reason or not proposal.evidence:
        return Refusal.INVALID_REQUEST
    # What an answer leads to is said by the flow: only a process that knows it can tell.
    if transfer.flow not in gate.engine.context.flows or not _is_open(gate, transfer, proposal):
        return Refusal.INVALID_REQUEST
    return await resolutions.propose(gate.store, proposal)


async def confirm(gate: Gate, resolution: Resolution, confirmed_by: str) -> str:
    """Carry it out by a second person's word; say what came of it."""
    proposal = resolution.proposal
    if (absent := await _absent(gate, proposal)) is not None:
        return f"this process does not {absent}: confirm at one that does"
    second = await resolutions.confirm(gate.store, resolution.id, confirmed_by)
    if second is None:
        return "this was proposed by you, or is closed already"
    actor = f"{proposal.proposed_by} and {second}"
    for _ in range(TRIES):
        transfer = await operator_reads.one(gate.store, proposal.transfer_id)
        assert transfer is not None, "what was proposed is about a transfer that was there"
        if not _is_open(gate, transfer, proposal):
            await resolutions.close(gate.store, resolution.id, MEANWHILE)
            return MEANWHILE
        answer = await _answer(gate, transfer, proposal)
        if isinstance(answer, Unknown):
            return f"the system does not confirm that it will not happen: {answer.reason}"
        assert transfer.lane is not None, "an open question has a lane"
        work = WriteBatch([transfer], [answer], transfer.lane, actor)
        await conclude(gate.engine.context, work)
        if await _is_recorded(gate, transfer, actor):
            outcome = "done" if isinstance(answer, Done) else f"rejected: {answer.reason}"
            await resolutions.close(gate.store, resolution.id, outcome)
            return outcome
    return "an engine is asking the same question: confirm once more"


async def _absent(gate: Gate, proposal: Proposal) -> str | None:
    """What it takes to carry this out, and this process lacks; None if it lacks nothing."""
    transfer, context = (
        await operator_reads.one(gate.store, proposal.transfer_id),
        gate.engine.context,
    )
    assert transfer is not None, "what was proposed is about a transfer that was there"
    if transfer.flow not in context.flows:
        return f"know the flow {transfer.flow}"
    if proposal.kind == "done":
        return None
    # The system that was asked is told to refuse; and whether a «no» leads to an undo depends on
    # whether the other system can undo, which is known only where that system is.
    systems = {party.system for party in transfer.parties.values()}
    missing = sorted(systems - context.outside.keys() - context.local.keys())
    return f"have the system {missing[0]}" if missing else None


def _is_open(gate: Gate, transfer: Transfer, proposal: Proposal) -> bool:
    """Whether what was proposed is about the question that the transfer has open."""
    if transfer.lane is None:
        return False
    if proposal.kind == "suspense":
        # A refund that was refused once more is asked under a new key, every few seconds; what
        # people say about it holds for the next one too, until it is done or re-pointed.
        refunding = _question(gate, transfer).verb is Verb.REFUND
        return refunding and proposal.version <= transfer.version
    return proposal.version == transfer.version


async def _is_recorded(gate: Gate, transfer: Transfer, actor: str) -> bool:
    """Not if an engine was faster: its answer stands then, and the people's was not taken."""
    answers = await operator_reads.history(gate.store, transfer.id)
    return any(a.version == transfer.version and a.actor == actor for a in answers)


async def _answer(gate: Gate, transfer: Transfer, proposal: Proposal) -> Answer:
    if proposal.kind == "done":
        return Done(proposal.evidence | {"reason": proposal.reason})
    # A «no» by people must be made true first: the system refuses the question for ever. If it
    # had decided already, what it decided counts.
    said = await _void(gate, transfer)
    if isinstance(said, Done | Unknown) and not _is_forgotten(said):
        return said
    if proposal.kind == "suspense":
        suspense = (LEDGER, SUSPENSE, transfer.owner)
        return Rejected(proposal.reason, proposal.evidence, repoint=suspense)
    return Rejected(proposal.reason, proposal.evidence)


def _is_forgotten(answer: Answer) -> bool:
    """Below its floor a system does nothing any more and remembers nothing: the evidence counts."""
    return isinstance(answer, Unknown) and answer.reason == Doubt.RETIRED


async def _void(gate: Gate, transfer: Transfer) -> Answer:
    question = replace(_question(gate, transfer), void=True)
    context, lane = gate.engine.context, transfer.lane
    assert lane is not None
    if lane in context.local:
        async with context.store.transaction() as tx:
            [local] = await context.local[lane].ask(tx, [question])
        return local
    try:
        said = await ask(context.outside[lane], [question])
    except Unreachable as fault:
        return Unknown(str(fault))
    return said if isinstance(said, Unknown) else said[0]


def _question(gate: Gate, transfer: Transfer) -> Question:
    return question_of(gate.engine.context.flows[transfer.flow], transfer)
