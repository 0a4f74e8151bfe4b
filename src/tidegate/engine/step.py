"""One step of the engine over a batch: ask, decide, record. Safe to kill at any line."""

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple
from uuid import UUID

from tidegate.core.answers import Alarm, Answer, Unknown, Unreachable
from tidegate.core.decide import Terms, decide
from tidegate.core.flow import Flow
from tidegate.core.ports import (
    Account,
    Admission,
    LocalSystem,
    Remembering,
    Store,
    StoreFault,
    System,
    Tx,
    Witness,
)
from tidegate.core.transfer import Move, Question, Transfer, lane_of, question_of
from tidegate.engine.alerts import Alert
from tidegate.engine.rings import Apart, Ring, Slots

RECORD_TRIES = 8
MAX_SPLIT_CALLS = 64
RETRY_FIRST_S = 0.02
RETRY_CAP_S = 1.0
RETRY_DOUBLINGS = 10


@dataclass(frozen=True, slots=True)
class Means(Generic[Tx]):
    """All that a step needs. Nothing in the engine reads a clock or throws dice of its own."""

    store: Store[Tx]
    flows: Mapping[str, Flow]
    outside: Mapping[str, System]
    local: Mapping[str, LocalSystem[Tx]]
    remembering: Mapping[str, Remembering[Tx]]
    clock: Callable[[], float]
    dice: random.Random
    alert: Callable[[Alert], None]
    ended: Callable[[Transfer], None]
    woken: Callable[[Iterable[str]], None]
    rings: Mapping[str, Ring]
    apart: Apart
    irreversible: frozenset[str]
    admission: Admission[Tx] | None = None
    witnesses: Mapping[str, Witness[Tx]] = field(default_factory=dict)

    def terms(self, actor: str = "") -> Terms:
        """Of a whole batch: what must be asked again together stays together."""
        return Terms(self.dice.random(), self.irreversible, actor)


async def step(means: Means[Tx], lane: str, batch: Sequence[Transfer], *, split: bool) -> bool:
    """Move a batch of one lane by one outside answer each, and on through local systems.

    False if the system raised something, so that the caller knows that it may be ill.
    """
    if lane in means.local:
        await conclude(means, lane, batch, None)
        return True
    questions = [question_of(means.flows[t.flow], t) for t in batch]
    answers = await ask(means.outside[lane], questions)
    well = not isinstance(answers, Unknown)
    if isinstance(answers, Unknown):
        calls = MAX_SPLIT_CALLS if split else 0
        answers, _ = await _split(means.outside[lane], questions, answers, calls)
    await conclude(means, lane, batch, answers)
    return well


async def ask(system: System, questions: Sequence[Question]) -> Sequence[Answer] | Unknown:
    """The one place where an exception becomes an answer, and that answer is never «no»."""
    try:
        answers = await system.ask(questions)
        assert len(answers) == len(questions), f"{system.name} left questions without an answer"
    except Unreachable:
        raise
    except Exception as fault:  # noqa: BLE001  Whatever it was, the effect is unknown.
        return Unknown(f"{type(fault).__name__}: {fault}")
    return answers


async def _split(
    system: System, questions: Sequence[Question], doubt: Unknown, calls: int
) -> tuple[list[Answer], int]:
    """Others get answers, so that some of these are to blame: they are found by halving.

    Within a bound, so that a system which is ill as a whole is not asked everything one by one.
    """
    if len(questions) == 1 or calls < 2:
        return [doubt] * len(questions), calls
    half, calls = len(questions) // 2, calls - 2
    answers: list[Answer] = []
    parts = [(part, await ask(system, part)) for part in (questions[:half], questions[half:])]
    for part, said in parts:
        if isinstance(said, Unknown):
            said, calls = await _split(system, part, said, calls)  # noqa: PLW2901
        answers += said
    return answers, calls


async def conclude(
    means: Means[Tx],
    lane: str,
    batch: Sequence[Transfer],
    answers: Sequence[Answer] | None,
    actor: str = "",
) -> None:
    """Record what was answered. A row that cannot be recorded is found by halving, and stays."""
    for attempt in range(RECORD_TRIES):
        try:
            return await _record(means, lane, batch, answers, actor)
        except Exception as fault:
            if isinstance(fault, StoreFault) and fault.retryable:
                if attempt == RECORD_TRIES - 1:
                    raise
                await asyncio.sleep(pause_s(attempt, means.dice))
            elif len(batch) == 1:
                _blame(means, lane, batch[0], fault)
                return None
            else:
                break
    half = len(batch) // 2
    for part in (slice(half), slice(half, None)):
        some = None if answers is None else answers[part]
        await conclude(means, lane, batch[part], some, actor)
    return None


def pause_s(attempt: int, dice: random.Random) -> float:
    """Between two tries of a transaction that the database could not take."""
    full: float = min(RETRY_FIRST_S * 2 ** min(attempt, RETRY_DOUBLINGS), RETRY_CAP_S)
    return full * (0.5 + dice.random() / 2)


def _blame(means: Means[Tx], lane: str, transfer: Transfer, fault: Exception) -> None:
    cause = f"cannot be recorded: {fault}"
    means.alert(Alert(Alarm.PAGE, cause, lane, transfer.id, transfer.state))


async def _record(
    means: Means[Tx],
    lane: str,
    batch: Sequence[Transfer],
    answers: Sequence[Answer] | None,
    actor: str,
) -> None:
    slots = Slots(means.rings, means.clock() + means.store.lease_s)
    try:
        work = Work(batch, answers, actor)
        with means.apart.locking(_locks(means, t) for t in batch):
            moves, rows = await _transact(means, lane, work, slots)
    except BaseException:
        slots.free()
        raise
    means.woken(slots.fill(rows))
    await announce(means, moves, rows)


def _locks(means: Means[Tx], transfer: Transfer) -> int | None:
    """Whose accounts will be locked, if all goes well: the one guess that is worth its while."""
    flow = means.flows[transfer.flow]
    ask = flow.ask(transfer.state)
    if ask is None or transfer.lane in means.local:
        return transfer.owner
    later = lane_of(flow, transfer.parties, flow.arrive(ask.done)[-1])
    return transfer.owner if later in means.local else None


class Work(NamedTuple):
    """What was asked, what was answered, and who answered if it was a person."""

    batch: Sequence[Transfer]
    answers: Sequence[Answer] | None  # None: of a local lane, which is asked when all is locked.
    actor: str


async def _transact(
    means: Means[Tx], lane: str, work: Work, slots: Slots
) -> tuple[Sequence[Move], Sequence[Transfer]]:
    moves: Sequence[Move] = ()
    rows: Sequence[Transfer] = ()
    async with means.store.transaction() as tx:
        firsts = _first_moves(means, work)
        groups = _groups(means, firsts, range(len(firsts)))
        # As if none of them had moved since: then this is no way of its own to the database.
        fresh = await means.store.lock(
            tx, work.batch, lambda: _lock_accounts(means, tx, firsts, groups)
        )
        if fresh:
            if len(fresh) < len(firsts):
                unmoved = {t.id for t in fresh}
                firsts = [move for move in firsts if move.before.id in unmoved]
                groups = _groups(means, firsts, range(len(firsts)))
            moves = await _settle(means, tx, firsts, groups)
            leased = slots.reserve(moves, halted=(await tx.begun()).halted)
            rows = await means.store.record(tx, moves, leased)
            await be_witnessed(means, tx, moves, born=False)
        if lane in means.remembering:
            await means.remembering[lane].remember(tx)
    return moves, rows


def _first_moves(means: Means[Tx], work: Work) -> list[Move]:
    if work.answers is None:
        return [Move(transfer, transfer) for transfer in work.batch]
    terms = means.terms(work.actor)
    return [
        decide(means.flows[transfer.flow], transfer, answer, terms)
        for transfer, answer in zip(work.batch, work.answers, strict=True)
    ]


class Group(NamedTuple):
    """The moves of a batch that have the same local system to ask next, by their places."""

    places: Sequence[int]
    questions: Sequence[Question]


async def settle(means: Means[Tx], tx: Tx, moves: Sequence[Move]) -> list[Move]:
    """Go on inside this transaction as long as a local system is to be asked next."""
    groups = _groups(means, moves, range(len(moves)))
    await _lock_accounts(means, tx, moves, groups)
    return await _settle(means, tx, moves, groups)


async def _settle(
    means: Means[Tx], tx: Tx, moves: Sequence[Move], groups: dict[str, Group]
) -> list[Move]:
    """Only for rows that are locked and still at their version: a stale answer must not move
    money on its way to being ignored.
    """
    settled, terms = list(moves), means.terms()
    while groups and not (await tx.begun()).halted:
        for name in sorted(groups):
            places, questions = groups[name]
            answers = await _ask_locally(means.local[name], tx, questions)
            for place, answer in zip(places, answers, strict=True):
                transfer = settled[place].after
                later = decide(means.flows[transfer.flow], transfer, answer, terms)
                settled[place] = settled[place].then(later)
        asked = sorted(place for group in groups.values() for place in group.places)
        groups = _groups(means, settled, asked)
    return settled


def _groups(means: Means[Tx], moves: Sequence[Move], among: Iterable[int]) -> dict[str, Group]:
    places: dict[str, list[int]] = {}
    for place in among:
        lane = moves[place].after.lane
        if lane in means.local and not moves[place].rests:
            places.setdefault(str(lane), []).append(place)
    found = {}
    for name, group in places.items():
        asked = (moves[place].after for place in group)
        found[name] = Group(group, [question_of(means.flows[t.flow], t) for t in asked])
    return found


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


async def be_witnessed(means: Means[Tx], tx: Tx, moves: Sequence[Move], *, born: bool) -> None:
    """Tell each system that keeps a record of its own what becomes of its transfers."""
    if not means.witnesses:
        return
    seen: dict[str, dict[UUID, Move]] = {}
    for move in moves:
        for party in move.after.parties.values():
            if party.system in means.witnesses:
                seen.setdefault(party.system, {})[move.after.id] = move
    for name in sorted(seen):
        try:
            await means.witnesses[name].witness(tx, list(seen[name].values()), born=born)
        except StoreFault:
            raise
        except Exception as fault:
            raise StoreFault(f"{name} raised {fault!r}") from fault


async def _lock_accounts(
    means: Means[Tx], tx: Tx, moves: Sequence[Move], groups: Mapping[str, Group]
) -> None:
    """Every account that any role of the batch names, whichever of them will be asked.

    In one order, because two batches that lock the same accounts in different orders deadlock.
    """
    wanted: dict[str, set[Account]] = {}
    for group in groups.values():
        for place in group.places:
            transfer = moves[place].after
            for party in transfer.parties.values():
                if party.system in means.local:
                    account = Account(party.owner, party.book, transfer.asset_id)
                    wanted.setdefault(party.system, set()).add(account)
    for name in sorted(wanted):
        asked = groups[name].questions if name in groups else ()
        await means.local[name].lock(tx, sorted(wanted[name]), asked)


async def announce(means: Means[Tx], moves: Sequence[Move], rows: Sequence[Transfer]) -> None:
    """After the commit: tell who waits for an end, call a human, pull the brake."""
    for move, row in zip(moves, rows, strict=True):
        if row.lane is None:
            means.ended(row)
        if move.alarm > Alarm.NONE and _is_news(move):
            cause = move.attempt or row.error or ""
            means.alert(Alert(move.alarm, cause, row.lane, row.id, row.state))
        if move.alarm is Alarm.HALT:
            await means.store.halt(f"{row.id}: {move.attempt}", "engine")


def _is_news(move: Move) -> bool:
    """Not when somebody was called for the same reason before. A pulled brake is always told."""
    same_reason = not move.entries or move.after.error == move.before.error
    same_question = move.after.state == move.before.state and same_reason
    return move.alarm is Alarm.HALT or not (move.before.paged and same_question)
