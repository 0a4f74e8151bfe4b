"""Local systems answer inside the transaction that records their answers."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import NamedTuple, cast
from uuid import UUID

from tidegate.core.account import Account, account_at
from tidegate.core.answers import Answer, Done, bounded_evidence
from tidegate.core.decide import Terms, decide
from tidegate.core.moves import MoveGroup, Moves, in_groups
from tidegate.core.ports import InboxRequest, LocalSystem, StoreFault, Tx
from tidegate.core.refusals import Refusal
from tidegate.core.transfer import Question, Step, step_of
from tidegate.engine.context import Means


class Group(NamedTuple):
    """The moves of a batch that have the same local system to ask next, by their places."""

    places: Sequence[int]
    questions: Sequence[Question]


def answered(
    means: Means[Tx], moves: Moves, places: Iterable[int], answers: Iterable[Answer], terms: Terms
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
            groups.append(_done(means, group, cast("list[Done]", replies)))
        else:
            groups += _decided(means, moves, group, replies, terms)
    moves.regroup(groups)


def _done(means: Means[Tx], group: MoveGroup, answers: Sequence[Done]) -> MoveGroup:
    """What Done leads to is worked out once for the group."""
    evidences = [answer.evidence for answer in answers]
    kept = [bounded_evidence(each) for each in evidences] if any(evidences) else None
    return MoveGroup(means.rules.done(group.step), group.places, (*group.evidences, kept))


def _decided(
    means: Means[Tx], moves: Moves, group: MoveGroup, answers: Sequence[Answer], terms: Terms
) -> list[MoveGroup]:
    """What is Done as a group; of the others each is decided by itself."""
    done = [type(answer) is Done and not terms.actor for answer in answers]
    groups = []
    if any(done):
        plain = [answer for answer in answers if type(answer) is Done]
        groups.append(_done(means, group.part(done), plain))
    flow = means.flows[group.step.after.flow]
    rows = []
    for number, (place, answer) in enumerate(zip(group.places, answers, strict=True)):
        if not done[number]:
            later = decide(flow, moves.now(place), answer, terms)
            kept = tuple([entry.evidence for entry in later.entries])
            rows.append((place, group.step.then(step_of(later)), group.row(number) + kept))
    return groups + in_groups(rows)


async def settle(means: Means[Tx], tx: Tx, moves: Moves, groups: dict[str, Group]) -> None:
    """Only for rows that are locked and still at their version: a stale answer must not move
    money on its way to being ignored.
    """
    terms = means.terms()
    while groups and not (await tx.begun()).halted:
        for name in sorted(groups):
            places, questions = groups[name]
            answers = await _ask_locally(means.local[name], tx, questions)
            answered(means, moves, places, answers, terms)
        groups = groups_of(means, moves)


def groups_of(means: Means[Tx], moves: Moves) -> dict[str, Group]:
    """Whom of the local systems to ask next about which moves. Those of other groups never ask one
    in this transaction: they rest, or have ended, or ask somebody outside.
    """
    found: dict[str, list[Group]] = {}
    for step, places, _ in moves.groups:
        if _asks_locally(means, step):
            kind = step.after
            asked = means.rules.asked(kind, [moves.transfers[place] for place in places])
            found.setdefault(str(kind.lane), []).append(Group(places, asked))
    return {name: _merged(groups) for name, groups in found.items()}


def _asks_locally(means: Means[Tx], step: Step) -> bool:
    return not step.rests and step.after.lane in means.local


def _merged(groups: Sequence[Group]) -> Group:
    """In the order of the batch, in which one who asks twice expects to be judged."""
    if len(groups) == 1:
        return groups[0]
    pairs = [pair for group in groups for pair in zip(*group, strict=True)]
    pairs.sort(key=itemgetter(0))
    return Group([place for place, _ in pairs], [question for _, question in pairs])


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


async def tell_listeners(means: Means[Tx], tx: Tx, moves: Moves) -> None:
    """Tell each system that keeps a record of its own what becomes of its transfers."""
    if not means.listeners:
        return
    told: dict[str, list[int]] = {}
    for step, places, _ in moves.groups:
        for name in {seat.system for seat in step.after.seats} & means.listeners.keys():
            told.setdefault(name, []).extend(places)
    for name in sorted(told):
        try:
            concerned = [moves.move(place) for place in sorted(told[name])]
            await means.listeners[name].moved(tx, concerned)
        except StoreFault:
            raise
        except Exception as fault:
            raise StoreFault(f"{name} raised {fault!r}") from fault


async def decide_requests(
    means: Means[Tx],
    tx: Tx,
    created: Sequence[UUID],
    refused: Sequence[tuple[InboxRequest, Refusal]],
) -> None:
    """Write what became of requests of the inbox; listeners are told of those that were refused."""
    outcomes: dict[UUID, str | None] = dict.fromkeys(created)
    outcomes |= {asked.id: str(refusal) for asked, refusal in refused}
    await means.store.inbox.decide(tx, outcomes)
    for name in sorted(means.listeners) if refused else ():
        try:
            await means.listeners[name].refused(tx, refused)
        except StoreFault:
            raise
        except Exception as fault:
            raise StoreFault(f"{name} raised {fault!r}") from fault


async def lock_accounts(
    means: Means[Tx], tx: Tx, moves: Moves, groups: Mapping[str, Group]
) -> None:
    """Every account that any role of the batch names, whichever of them will be asked.

    In one order, because two batches that lock the same accounts in different orders deadlock.
    """
    wanted: dict[str, dict[tuple[str, int], set[int]]] = {}  # Owners by system, book and asset.
    for step, places, _ in moves.groups:
        if not _asks_locally(means, step):
            continue
        kind, named = step.after, {moves.transfers[place].owner for place in places}
        for _, system, book, other in kind.seats:
            if system in means.local:
                accounts = wanted.setdefault(system, {})
                whose = named if other is None else (other,)
                accounts.setdefault((book, kind.asset_id), set()).update(whose)
    for name in sorted(wanted):
        asked = groups[name].questions if name in groups else ()
        await means.local[name].lock(tx, _in_order(wanted[name]), asked)


def _in_order(wanted: Mapping[tuple[str, int], set[int]]) -> list[Account]:
    """Sorted as accounts are, by their owners first."""
    ordered = [
        [account_at((owner, book, asset_id)) for owner in sorted(owners)]
        for (book, asset_id), owners in wanted.items()
    ]
    return ordered[0] if len(ordered) == 1 else sorted(chain.from_iterable(ordered))
