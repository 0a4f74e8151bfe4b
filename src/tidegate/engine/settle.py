"""Local systems answer inside the transaction that records their answers."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import NamedTuple
from uuid import UUID

from tidegate.core.account import Account, account_at
from tidegate.core.answers import NO_EVIDENCE, Answer, Done, bounded_evidence
from tidegate.core.decide import Terms, decide
from tidegate.core.ports import InboxRequest, LocalSystem, StoreFault, Tx
from tidegate.core.refusals import Refusal
from tidegate.core.transfer import Moves, Question, Step, step_of
from tidegate.engine.context import Means

NOTHING_KEPT = (NO_EVIDENCE,)


class Group(NamedTuple):
    """The moves of a batch that have the same local system to ask next, by their places."""

    places: Sequence[int]
    questions: Sequence[Question]


def answered(
    means: Means[Tx], moves: Moves, places: Iterable[int], answers: Iterable[Answer], terms: Terms
) -> None:
    """Move each of some transfers by the answer that it got."""
    steps, evidences, rules = moves.steps, moves.evidences, means.rules
    plain = not terms.actor
    for place, answer in zip(places, answers, strict=True):
        step = steps[place]
        if plain and type(answer) is Done:
            steps[place] = rules.done(step)
            evidence = answer.evidence
            evidences[place] += (bounded_evidence(evidence),) if evidence else NOTHING_KEPT
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
    by_step: dict[Step, list[int]] = {}
    steps = moves.steps
    for place in among:
        by_step.setdefault(steps[place], []).append(place)
    found: dict[str, list[Group]] = {}
    for step, places in by_step.items():
        kind = step.after
        if not step.rests and kind.lane in means.local:
            asked = means.rules.asked(kind, [moves.transfers[place] for place in places])
            found.setdefault(str(kind.lane), []).append(Group(places, asked))
    return {name: _merged(groups) for name, groups in found.items()}


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
    owners: dict[Step, set[int]] = {}
    steps, transfers = moves.steps, moves.transfers
    for group in groups.values():
        for place in group.places:
            owners.setdefault(steps[place], set()).add(transfers[place].owner)
    wanted: dict[str, dict[tuple[str, int], set[int]]] = {}  # Owners by system, book and asset.
    for step, named in owners.items():
        kind = step.after
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
