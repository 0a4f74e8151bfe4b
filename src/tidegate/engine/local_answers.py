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
    """The moves of a batch that ask the same local system next, by their indexes in the batch."""

    indexes: Sequence[int]
    questions: Sequence[Question]


def apply_answers(
    context: EngineContext[Tx],
    moves: Moves,
    indexes: Iterable[int],
    answers: Iterable[Answer],
    decision: DecisionContext,
) -> None:
    """Move the transfers at these indexes by their answers. A group is asked as a whole."""
    by_index = dict(zip(indexes, answers, strict=True))
    groups: list[MoveGroup] = []
    for group in moves.groups:
        if group.indexes[0] not in by_index:
            groups.append(group)
            continue
        group_answers = [by_index[index] for index in group.indexes]
        if set(map(type, group_answers)) == {Done} and not decision.actor:
            groups.append(_done(context, group, cast("list[Done]", group_answers)))
        else:
            groups += _decided(context, moves, group, group_answers, decision)
    moves.regroup(groups)


def _done(context: EngineContext[Tx], group: MoveGroup, answers: Sequence[Done]) -> MoveGroup:
    """Move a group whose answers are all Done by one decision."""
    evidences = [answer.evidence for answer in answers]
    bounded = [bounded_evidence(evidence) for evidence in evidences] if any(evidences) else None
    return MoveGroup(context.rules.done(group.step), group.indexes, (*group.evidences, bounded))


def _decided(
    context: EngineContext[Tx],
    moves: Moves,
    group: MoveGroup,
    answers: Sequence[Answer],
    decision: DecisionContext,
) -> list[MoveGroup]:
    """Move the transfers that are Done as a group. Decide about each of the others."""
    done = [type(answer) is Done and not decision.actor for answer in answers]
    groups = []
    if any(done):
        done_answers = [answer for answer in answers if type(answer) is Done]
        groups.append(_done(context, group.part(done), done_answers))
    flow = context.flows[group.step.after.flow]
    rows = []
    for number, (index, answer) in enumerate(zip(group.indexes, answers, strict=True)):
        if not done[number]:
            move = decide(flow, moves.transfer_after(index), answer, decision)
            evidence = tuple([entry.evidence for entry in move.entries])
            rows.append((index, group.step.then(step_of(move)), group.row(number) + evidence))
    return groups + in_groups(rows)


async def ask_local_systems(
    context: EngineContext[Tx], tx: Tx, moves: Moves, groups: dict[str, LocalGroup]
) -> None:
    """Ask local systems until no move has a question for one.

    Call this only for rows that are locked and still have their version: a stale answer is ignored,
    and must not have moved money before.
    """
    decision = context.decision_context()
    while groups and not (await tx.begun()).halted:
        for name in sorted(groups):
            indexes, questions = groups[name]
            answers = await _ask_locally(context.local[name], tx, questions)
            apply_answers(context, moves, indexes, answers, decision)
        groups = local_groups(context, moves)


def local_groups(context: EngineContext[Tx], moves: Moves) -> dict[str, LocalGroup]:
    """The moves that ask a local system next, by the system's name.

    The other moves ask no local system in this transaction: they rest, have ended, or ask an
    outside system.
    """
    groups: dict[str, list[LocalGroup]] = {}
    for step, indexes, _ in moves.groups:
        if _asks_locally(context, step):
            kind = step.after
            transfers = [moves.transfers[index] for index in indexes]
            questions = context.rules.questions_of_kind(kind, transfers)
            groups.setdefault(str(kind.lane), []).append(LocalGroup(indexes, questions))
    return {name: _merged(of_system) for name, of_system in groups.items()}


def _asks_locally(context: EngineContext[Tx], step: Step) -> bool:
    return not step.rests and step.after.lane in context.local


def _merged(groups: Sequence[LocalGroup]) -> LocalGroup:
    """Restore the order of the batch: requests of one caller are judged in the order they came."""
    if len(groups) == 1:
        return groups[0]
    pairs = [pair for group in groups for pair in zip(*group, strict=True)]
    pairs.sort(key=itemgetter(0))
    return LocalGroup([index for index, _ in pairs], [question for _, question in pairs])


async def _ask_locally(
    system: LocalSystem[Tx], tx: Tx, questions: Sequence[Question]
) -> Sequence[Answer]:
    """Ask a local system. If it raises, the transaction is rolled back with all it has done."""
    try:
        answers = await system.ask(tx, questions)
        assert len(answers) == len(questions), f"{system.name} left questions without an answer"
    except StoreFault:
        raise
    except Exception as fault:
        raise StoreFault(f"{system.name} raised {fault!r}") from fault
    return answers


async def notify_listeners(context: EngineContext[Tx], tx: Tx, moves: Moves) -> None:
    """Pass each move to the systems that keep their own record of its transfer."""
    if not context.listeners:
        return
    indexes_by_listener: dict[str, list[int]] = {}
    for step, indexes, _ in moves.groups:
        systems = {template.system for template in step.after.party_templates}
        for name in systems & context.listeners.keys():
            indexes_by_listener.setdefault(name, []).extend(indexes)
    for name in sorted(indexes_by_listener):
        try:
            own_moves = [moves.move(index) for index in sorted(indexes_by_listener[name])]
            await context.listeners[name].moved(tx, own_moves)
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
    """Write the outcomes of inbox requests, and pass those that were refused to the listeners."""
    outcomes: dict[UUID, str | None] = dict.fromkeys(created)
    outcomes |= {inbox_request.id: str(refusal) for inbox_request, refusal in refused}
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
    """Lock the accounts of all roles of the batch, whichever role will be asked.

    In one order, because two batches that lock the same accounts in different orders deadlock.
    """
    wanted: dict[str, dict[tuple[str, int], set[int]]] = {}  # Owners by system, book and asset.
    for step, indexes, _ in moves.groups:
        if not _asks_locally(context, step):
            continue
        kind, batch_owners = step.after, {moves.transfers[index].owner for index in indexes}
        for _, system, book, fixed_owner in kind.party_templates:
            if system in context.local:
                accounts = wanted.setdefault(system, {})
                owners = batch_owners if fixed_owner is None else (fixed_owner,)
                accounts.setdefault((book, kind.asset_id), set()).update(owners)
    for name in sorted(wanted):
        questions = groups[name].questions if name in groups else ()
        await context.local[name].lock(tx, _in_order(wanted[name]), questions)


def _in_order(wanted: Mapping[tuple[str, int], set[int]]) -> list[Account]:
    """The accounts, sorted by owner first."""
    ordered = [
        [account_at((owner, book, asset_id)) for owner in sorted(owners)]
        for (book, asset_id), owners in wanted.items()
    ]
    return ordered[0] if len(ordered) == 1 else sorted(chain.from_iterable(ordered))
