"""Local systems answer inside the transaction that records their answers."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import NamedTuple, cast
from uuid import UUID

from tidegate.core.account import Account, account_at
from tidegate.core.answers import Answer, Done, bounded_evidence
from tidegate.core.decide import DecisionContext, decide
from tidegate.core.moves import MoveGroup, Moves, in_groups
from tidegate.core.ports import InboxRequest, LocalSystem, StoreFault, Tx
from tidegate.core.refusals import Refusal
from tidegate.core.transfer import Question, Step, step_of
from tidegate.engine.context import EngineContext


class LocalGroup(NamedTuple):
    """The moves of a batch that have the same local system to ask next, by their places."""

    places: Sequence[int]
    questions: Sequence[Question]


def answered(
    context: EngineContext[Tx],
    moves: Moves,
    places: Iterable[int],
    answers: Iterable[Answer],
    terms: DecisionContext,
) -> None:
    """Move each of some transfers by the answer that it got: whole groups, which were asked."""
    given = dict(zip(places, answers, strict=True))
    groups: list[MoveGroup] = []
    for group in moves.groups:
        if group.places[0] not in given:
            groups.append(group)
            continue
        replies = [given[place] for place in group.places]
        if set(map(type, replies)) == {Done} and not terms.actor:
            groups.append(_done(context, group, cast("list[Done]", replies)))
        else:
            groups += _decided(context, moves, group, replies, terms)
    moves.regroup(groups)


def _done(context: EngineContext[Tx], group: MoveGroup, answers: Sequence[Done]) -> MoveGroup:
    """What Done leads to is worked out once for the group."""
    evidences = [answer.evidence for answer in answers]
    kept = [bounded_evidence(each) for each in evidences] if any(evidences) else None
    return MoveGroup(context.rules.done(group.step), group.places, (*group.evidences, kept))


def _decided(
    context: EngineContext[Tx],
    moves: Moves,
    group: MoveGroup,
    answers: Sequence[Answer],
    terms: DecisionContext,
) -> list[MoveGroup]:
    """What is Done as a group; of the others each is decided by itself."""
    done = [type(answer) is Done and not terms.actor for answer in answers]
    groups = []
    if any(done):
        plain = [answer for answer in answers if type(answer) is Done]
        groups.append(_done(context, group.part(done), plain))
    flow = context.flows[group.step.after.flow]
    rows = []
    for number, (place, answer) in enumerate(zip(group.places, answers, strict=True)):
        if not done[number]:
            later = decide(flow, moves.now(place), answer, terms)
            kept = tuple([entry.evidence for entry in later.entries])
            rows.append((place, group.step.then(step_of(later)), group.row(number) + kept))
    return groups + in_groups(rows)


async def ask_local_systems(
    context: EngineContext[Tx], tx: Tx, moves: Moves, groups: dict[str, LocalGroup]
) -> None:
    """Only for rows that are locked and still at their version: a stale answer must not move
    money on its way to being ignored.
    """
    terms = context.terms()
    while groups and not (await tx.begun()).halted:
        for name in sorted(groups):
            places, questions = groups[name]
            answers = await _ask_locally(context.local[name], tx, questions)
            answered(context, moves, places, answers, terms)
        groups = groups_of(context, moves)


def groups_of(context: EngineContext[Tx], moves: Moves) -> dict[str, LocalGroup]:
    """Whom of the local systems to ask next about which moves. Those of other groups never ask one
    in this transaction: they rest, or have ended, or ask somebody outside.
    """
    found: dict[str, list[LocalGroup]] = {}
    for step, places, _ in moves.groups:
        if _asks_locally(context, step):
            kind = step.after
            asked = context.rules.asked(kind, [moves.transfers[place] for place in places])
            found.setdefault(str(kind.lane), []).append(LocalGroup(places, asked))
    return {name: _merged(groups) for name, groups in found.items()}


def _asks_locally(context: EngineContext[Tx], step: Step) -> bool:
    return not step.rests and step.after.lane in context.local


def _merged(groups: Sequence[LocalGroup]) -> LocalGroup:
    """In the order of the batch, in which one who asks twice expects to be judged."""
    if len(groups) == 1:
        return groups[0]
    pairs = [pair for group in groups for pair in zip(*group, strict=True)]
    pairs.sort(key=itemgetter(0))
    return LocalGroup([place for place, _ in pairs], [question for _, question in pairs])


async def _ask_locally(
    system: LocalSystem[Tx], tx: Tx, questions: Sequence[Question]
) -> Sequence[Answer]:
    """What a local system raises ends the transaction, so that nothing of it has happened."""
    try:
        answers = await system.ask(tx, questions)
        assert len(answers) == len(questions), f"{system.name} left questions without an answer"
    except StoreFault:
        raise
    except Exception as fault:
        raise StoreFault(f"{system.name} raised {fault!r}") from fault
    return answers


async def tell_listeners(context: EngineContext[Tx], tx: Tx, moves: Moves) -> None:
    """Tell each system that keeps a record of its own what becomes of its transfers."""
    if not context.listeners:
        return
    told: dict[str, list[int]] = {}
    for step, places, _ in moves.groups:
        for name in {
            template.system for template in step.after.party_templates
        } & context.listeners.keys():
            told.setdefault(name, []).extend(places)
    for name in sorted(told):
        try:
            concerned = [moves.move(place) for place in sorted(told[name])]
            await context.listeners[name].moved(tx, concerned)
        except StoreFault:
            raise
        except Exception as fault:
            raise StoreFault(f"{name} raised {fault!r}") from fault


async def decide_requests(
    context: EngineContext[Tx],
    tx: Tx,
    created: Sequence[UUID],
    refused: Sequence[tuple[InboxRequest, Refusal]],
) -> None:
    """Write what became of requests of the inbox; listeners are told of those that were refused."""
    outcomes: dict[UUID, str | None] = dict.fromkeys(created)
    outcomes |= {asked.id: str(refusal) for asked, refusal in refused}
    await context.store.inbox.decide(tx, outcomes)
    for name in sorted(context.listeners) if refused else ():
        try:
            await context.listeners[name].refused(tx, refused)
        except StoreFault:
            raise
        except Exception as fault:
            raise StoreFault(f"{name} raised {fault!r}") from fault


async def lock_accounts(
    context: EngineContext[Tx], tx: Tx, moves: Moves, groups: Mapping[str, LocalGroup]
) -> None:
    """Every account that any role of the batch names, whichever of them will be asked.

    In one order, because two batches that lock the same accounts in different orders deadlock.
    """
    wanted: dict[str, dict[tuple[str, int], set[int]]] = {}  # Owners by system, book and asset.
    for step, places, _ in moves.groups:
        if not _asks_locally(context, step):
            continue
        kind, named = step.after, {moves.transfers[place].owner for place in places}
        for _, system, book, other in kind.party_templates:
            if system in context.local:
                accounts = wanted.setdefault(system, {})
                whose = named if other is None else (other,)
                accounts.setdefault((book, kind.asset_id), set()).update(whose)
    for name in sorted(wanted):
        asked = groups[name].questions if name in groups else ()
        await context.local[name].lock(tx, _in_order(wanted[name]), asked)


def _in_order(wanted: Mapping[tuple[str, int], set[int]]) -> list[Account]:
    """Sorted as accounts are, by their owners first."""
    ordered = [
        [account_at((owner, book, asset_id)) for owner in sorted(owners)]
        for (book, asset_id), owners in wanted.items()
    ]
    return ordered[0] if len(ordered) == 1 else sorted(chain.from_iterable(ordered))
