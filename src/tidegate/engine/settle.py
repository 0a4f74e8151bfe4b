"""Local systems answer inside the transaction that records their answers."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import NamedTuple
from uuid import UUID

from tidegate.core.answers import Answer, Done, bounded_evidence
from tidegate.core.decide import Terms, decide
from tidegate.core.ports import Account, InboxRequest, LocalSystem, StoreFault, Tx
from tidegate.core.refusals import Refusal
from tidegate.core.transfer import Kind, Moves, Question, step_of
from tidegate.engine.context import Means


class Group(NamedTuple):
    """The moves of a batch that have the same local system to ask next, by their places."""

    places: Sequence[int]
    questions: Sequence[Question]


def answered(
    means: Means[Tx], moves: Moves, places: Iterable[int], answers: Iterable[Answer], terms: Terms
) -> None:
    """Move each of some transfers by the answer that it got."""
    steps, evidences, rules = moves.steps, moves.evidences, means.rules
    for place, answer in zip(places, answers, strict=True):
        step = steps[place]
        if type(answer) is Done and not terms.actor:
            steps[place] = rules.done(step)
            evidences[place] += (bounded_evidence(answer.evidence),)
        else:
            later = decide(means.flows[step.after.flow], moves.now(place), answer, terms)
            steps[place] = step.then(step_of(later))
            evidences[place] += tuple([entry.evidence for entry in later.entries])


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
        # In the order of the batch, as the places of one group are already.
        several = [group.places for group in groups.values()]
        asked = several[0] if len(several) == 1 else sorted(chain.from_iterable(several))
        groups = groups_of(means, moves, asked)


def groups_of(means: Means[Tx], moves: Moves, among: Iterable[int]) -> dict[str, Group]:
    by_kind: dict[Kind, list[int]] = {}
    local, steps = means.local, moves.steps
    for place in among:
        step = steps[place]
        if not step.rests and step.after.lane in local:
            by_kind.setdefault(step.after, []).append(place)
    found: dict[str, list[tuple[int, Question]]] = {}
    for kind, places in by_kind.items():
        transfers = [moves.transfers[place] for place in places]
        asked = means.rules.asked(kind, transfers)
        found.setdefault(str(kind.lane), []).extend(zip(places, asked, strict=True))
    # In the order of the batch, in which one who asks twice expects to be judged.
    groups = {}
    for name, pairs in found.items():
        if len(by_kind) > 1:
            pairs.sort(key=itemgetter(0))
        groups[name] = Group([place for place, _ in pairs], [question for _, question in pairs])
    return groups


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
    concerned = {
        step: {seat.system for seat in step.after.seats} & means.listeners.keys()
        for step in set(moves.steps)
    }
    told: dict[str, list[int]] = {}
    for place, step in enumerate(moves.steps) if any(concerned.values()) else ():
        for name in concerned[step]:
            told.setdefault(name, []).append(place)
    for name in sorted(told):
        try:
            await means.listeners[name].moved(tx, [moves.move(place) for place in told[name]])
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
    owners: dict[Kind, set[int]] = {}
    for group in groups.values():
        for place in group.places:
            owners.setdefault(moves.steps[place].after, set()).add(moves.transfers[place].owner)
    wanted: dict[str, set[Account]] = {}
    for kind, named in owners.items():
        for _, system, book, other in kind.seats:
            if system in means.local:
                whose = named if other is None else (other,)
                accounts = [Account(owner, book, kind.asset_id) for owner in whose]
                wanted.setdefault(system, set()).update(accounts)
    for name in sorted(wanted):
        asked = groups[name].questions if name in groups else ()
        await means.local[name].lock(tx, sorted(wanted[name]), asked)
