"""The one way in which transfers are created and moved: a batch, in one transaction.

Lock, settle, write, tell listeners, commit; then hand over and announce. A batch that cannot be
written is halved until the one row is found that cannot.
"""

import asyncio
import random
from collections.abc import Hashable, Iterable, Sequence
from contextlib import suppress
from enum import Enum
from functools import partial
from itertools import compress, count
from typing import NamedTuple
from uuid import UUID

import msgspec

from tidegate.core.account import Account
from tidegate.core.answers import Answer
from tidegate.core.kind import Transfer, TransferKind
from tidegate.core.moves import MoveGroup, Moves
from tidegate.core.ports import (
    CommitUnknown,
    InboxRequest,
    KeyTaken,
    LockTimeout,
    NoSession,
    RequestKey,
    StoreFault,
    StoreUnavailable,
    Tx,
)
from tidegate.core.refusals import Refusal
from tidegate.core.request import Request
from tidegate.engine.context import EngineContext
from tidegate.engine.local_answers import (
    answered,
    ask_local_systems,
    decide_requests,
    groups_of,
    lock_accounts,
    tell_listeners,
)
from tidegate.engine.move_alerts import announce
from tidegate.engine.ring import RingReservation

TRIES = 8
LOCK_WAITS = 2  # In a row, then the batch is halved: one row's lock must not stop the others.
LOCK_TRIES = 24  # Of what waits briefly: about as long as the others wait in all.
MAX_TAKEN = 16  # Races lost in a row; more, and it is no race but a key that cannot be found.
SLOW_S = 60.0  # For so long an account that somebody holds is kept apart from others.
MAX_SLOW = 10_000
RETRY_FIRST_S = 0.02
RETRY_CAP_S = 1.0
RETRY_DOUBLINGS = 10


class BatchPace(Enum):
    """How a batch goes on: in the loop that brought it, or beside it."""

    LOOP = 0
    APART = 1  # The reply to a COMMIT was lost, or one of its rows cannot be written.
    BRIEF = 2  # Somebody holds a lock: each try gives up soon, so that it keeps no session busy.


class Creation(msgspec.Struct, frozen=True):
    """What the creation of a transfer needs besides the transfer itself."""

    request: Request
    key: RequestKey | None = None  # To be reserved. None: the inbox has done so.
    asked: InboxRequest | None = None  # The inbox's request.
    refusal: Refusal | None = None  # It is refused, and only that is written.


class WriteBatch(NamedTuple):
    """One batch. With creations its transfers do not exist yet; else they are locked first."""

    batch: Sequence[Transfer]
    answers: Sequence[Answer] | None = None  # None: local systems are asked when all is locked.
    lane: str | None = None
    actor: str = ""  # Who answered, if it was a person.
    creations: Sequence[Creation] = ()
    # The tries whose COMMIT was not answered: each may have happened, or may happen yet.
    doubts: tuple[str | None, ...] = ()

    def only(self, chosen: Sequence[bool]) -> "WriteBatch":
        if all(chosen):
            return self
        return self._replace(
            batch=list(compress(self.batch, chosen)),
            answers=None if self.answers is None else list(compress(self.answers, chosen)),
            creations=list(compress(self.creations, chosen)),
        )


class WriteResult(NamedTuple):
    """What one transaction wrote and what it refused, when it has committed."""

    work: WriteBatch
    rows: Sequence[Transfer] = ()
    refused: Sequence[tuple[UUID, Refusal]] = ()


class BatchSource:
    """Where a batch comes from, and who is told what became of it."""

    async def still_open(self, work: WriteBatch) -> WriteBatch:
        """Before another try: what is left to be written. Who asked for the rest is told."""
        return work

    async def written(self, result: WriteResult) -> None: ...

    async def failed(self, work: WriteBatch, fault: Exception) -> None:
        """It was rolled back and is not tried again, for now."""

    def doubtful(self, work: WriteBatch) -> None:
        """It takes long to learn whether it was committed. It is still being tried."""

    def broken(self, work: WriteBatch, bug: BaseException) -> None:
        """It ended with a bug, beside the loop that brought it: so does the engine."""


class _HaltedNow(Exception):
    """Nothing is created while all is halted: the transaction is rolled back."""


async def write(
    context: EngineContext[Tx],
    source: BatchSource,
    work: WriteBatch,
    *,
    pace: BatchPace = BatchPace.LOOP,
) -> None:
    """Write a batch: again while that can help, then by halves.

    A batch whose COMMIT was not answered, or that waits for somebody's lock, goes on beside the
    loop that brought it, so that the next batch need not wait.
    """
    if context.slow and pace is BatchPace.LOOP:
        work = await _without_slow(context, source, work)
    waits = taken = 0
    for attempt in count():
        try:
            if attempt or work.doubts:
                work = await source.still_open(work)
            if work.batch:
                await source.written(await _write_at(context, work, pace))
            return  # noqa: TRY300  There is nothing to do after it.
        except Exception as fault:
            if work.creations and not isinstance(fault, StoreFault):
                raise  # A bug: nobody knows what became of the requests.
            if isinstance(fault, CommitUnknown) and work.creations:
                work = work._replace(doubts=(*work.doubts, fault.xid))
            waits = waits + 1 if isinstance(fault, LockTimeout) else 0
            taken += isinstance(fault, KeyTaken)
            helps = _helps(fault, taken)
            stuck = waits >= (1 if pace is BatchPace.BRIEF else LOCK_WAITS)
            parts = _parts(context, work, locked=stuck)
            if len(parts) > 1 and (not helps or (stuck and pace is not BatchPace.LOOP)):
                # Side by side: the half without the bad row does not wait for the other.
                works = (write(context, source, part, pace=pace) for part in parts)
                await context.detached.together(works)
                return
            if waits and len(parts) == 1:
                _mark_slow(context, work)
            if not helps or (_is_tired(fault, attempt, pace) and not work.doubts):
                await source.failed(work, fault)
                return
            if work.doubts and attempt >= TRIES - 1:
                source.doubtful(work)
        if (work.doubts or stuck) and pace is BatchPace.LOOP:
            await _detach(
                context, source, work, BatchPace.APART if work.doubts else BatchPace.BRIEF
            )
            return
        await asyncio.sleep(pause_s(attempt, context.dice))


def _helps(fault: Exception, taken: int) -> bool:
    """Whether the same thing may succeed at another time."""
    if isinstance(fault, KeyTaken):
        return taken < MAX_TAKEN  # Another session was first; it has committed, and is found now.
    return isinstance(fault, StoreFault) and fault.retryable


def _is_tired(fault: Exception, attempt: int, pace: BatchPace) -> bool:
    if isinstance(fault, KeyTaken):
        return False  # It is known: the next look tells who asked.
    tries = LOCK_TRIES if pace is BatchPace.BRIEF else TRIES
    return attempt >= tries - 1 or isinstance(fault, NoSession)


def _parts(context: EngineContext[Tx], work: WriteBatch, *, locked: bool) -> list[WriteBatch]:
    """Two halves. If it waits for locks, no account is in both: one would wait for the other."""
    rows = range(len(work.batch))
    units: Sequence[Hashable] = rows
    if locked:
        units = [_accounts(context, work, row) or work.batch[row].id for row in rows]
    first = frozenset(list(dict.fromkeys(units))[::2])
    halves = [[(unit in first) is half for unit in units] for half in (True, False)]
    return [work.only(half) for half in halves if any(half)]


async def _detach(
    context: EngineContext[Tx], source: BatchSource, work: WriteBatch, pace: BatchPace
) -> None:
    going_on = write(context, source, work, pace=pace)
    await context.detached.start(going_on, lambda bug: source.broken(work, bug))


def _accounts(context: EngineContext[Tx], work: WriteBatch, row: int) -> frozenset[Account]:
    """The accounts that the row locks, as far as that is known beforehand."""
    transfer = work.batch[row]
    if work.creations and transfer.lane not in context.local:
        return frozenset()
    if not _is_near(context, transfer.kind):
        return frozenset()
    parties = (party for party in transfer.parties.values() if party.system in context.local)
    return frozenset(Account(p.owner, p.book, transfer.asset_id) for p in parties)


def _mark_slow(context: EngineContext[Tx], work: WriteBatch) -> None:
    """All that is left needs the same accounts, and somebody holds one: keep them apart."""
    for account in _accounts(context, work, 0) if len(context.slow) < MAX_SLOW else ():
        context.slow[account] = context.clock() + SLOW_S


async def _without_slow(
    context: EngineContext[Tx], source: BatchSource, work: WriteBatch
) -> WriteBatch:
    """The batch without what needs accounts that were held lately: it goes on by itself.

    When too many wait already, it is not tried for now: nobody else may wait for it.
    """
    now_s = context.clock()
    for account in [account for account, until_s in context.slow.items() if until_s <= now_s]:
        del context.slow[account]
    rows = range(len(work.batch))
    slow = [not context.slow.keys().isdisjoint(_accounts(context, work, row)) for row in rows]
    if any(slow):
        held = work.only(slow)
        if not await context.detached.start_held(
            lambda: write(context, source, held, pace=BatchPace.BRIEF),
            lambda bug: source.broken(held, bug),
        ):
            with suppress(StoreUnavailable):  # Of a lane: its rows are due again.
                await source.failed(held, LockTimeout("somebody holds an account, many wait"))
    return work.only([not each for each in slow])


def pause_s(attempt: int, dice: random.Random) -> float:
    """Between two tries of a transaction that the database could not take."""
    full: float = min(RETRY_FIRST_S * 2 ** min(attempt, RETRY_DOUBLINGS), RETRY_CAP_S)
    return full * (0.5 + dice.random() / 2)


async def _write_at(context: EngineContext[Tx], work: WriteBatch, pace: BatchPace) -> WriteResult:
    if pace is BatchPace.LOOP:
        return await _write_once(context, work)
    async with context.detached.turn:
        return await _write_once(context, work, brief=pace is BatchPace.BRIEF and not work.doubts)


async def _write_once(
    context: EngineContext[Tx], work: WriteBatch, *, brief: bool = False
) -> WriteResult:
    slots = RingReservation(context.rings, context.clock() + context.store.lease_s)
    try:
        with context.busy_owners.locking(_owners_locked(context, work)):
            written, moves = await _transact(context, work, slots, brief=brief)
    except _HaltedNow:
        slots.free()
        nothing = WriteBatch((), doubts=work.doubts)
        return WriteResult(nothing, refused=[(t.id, Refusal.HALTED) for t in work.batch])
    except BaseException:
        slots.free()
        raise
    for row in range(len(written.work.batch)) if context.slow else ():
        for account in _accounts(context, written.work, row):
            context.slow.pop(account, None)
    context.woken(slots.fill(written.rows))
    await announce(context, moves, written.rows)
    return written


def _owners_locked(context: EngineContext[Tx], work: WriteBatch) -> Iterable[int | None]:
    """Requests of callers were marked by their queue when it chose them."""
    marked = work.creations and not _of_inbox(work)
    return () if marked else owners_locked(context, work.batch)


def owners_locked(context: EngineContext[Tx], transfers: Sequence[Transfer]) -> list[int]:
    """The owners for whom a system of our own is asked now, or by the answer that is expected."""
    near = {kind for kind in {t.kind for t in transfers} if _is_near(context, kind)}
    return [t.owner for t in transfers if t.kind in near]


def _is_near(context: EngineContext[Tx], kind: TransferKind) -> bool:
    local = context.local
    return kind.lane is None or kind.lane in local or context.rules.foreseen(kind) in local


async def _transact(
    context: EngineContext[Tx], work: WriteBatch, slots: RingReservation, *, brief: bool = False
) -> tuple[WriteResult, Moves]:
    store = context.store
    refused: list[tuple[UUID, Refusal]] = []
    rows: Sequence[Transfer] = ()
    async with store.transaction() as tx:
        if brief:
            await tx.wait_briefly()
        asked = {c.asked.id: c.asked for c in _of_inbox(work) if c.asked is not None}
        if asked:
            undecided = frozenset(await store.inbox.take(tx, list(asked)))
            work = work.only([t.id in undecided for t in work.batch])
        if work.creations:
            work, refused = await _admit(context, tx, work)
        moves = _first_moves(context, work)
        groups = groups_of(context, moves)
        behind = partial(lock_accounts, context, tx, moves, groups)
        if work.creations:
            await behind()
        else:
            # The accounts as if no row had moved since: then they are no round trip of their own.
            fresh = await store.lock(tx, work.batch, behind)
            if fresh is not work.batch:
                stand = {transfer.id for transfer in fresh}
                work = work.only([t.id in stand for t in work.batch])._replace(batch=fresh)
                moves = _first_moves(context, work)
                groups = groups_of(context, moves)
        if moves:
            halted = (await tx.begun()).halted
            if halted and work.creations:
                raise _HaltedNow
            await ask_local_systems(context, tx, moves, groups)
            rows = await store.write(tx, moves, slots.reserve(moves, halted=halted))
            await tell_listeners(context, tx, moves)
        if asked and (rows or refused):
            turned_away = [(asked[id_], refusal) for id_, refusal in refused]
            await decide_requests(context, tx, [row.id for row in rows], turned_away)
        if work.lane in context.remembering:
            await context.remembering[str(work.lane)].remember(tx)
    return WriteResult(work, rows, refused), moves


def _of_inbox(work: WriteBatch) -> Sequence[Creation]:
    """Its creations, if the inbox asked for them. A batch has one source."""
    return work.creations if work.creations and work.creations[0].asked is not None else ()


async def _admit(
    context: EngineContext[Tx], tx: Tx, work: WriteBatch
) -> tuple[WriteBatch, list[tuple[UUID, Refusal]]]:
    """Which transfers may be created. Their keys are reserved before any account is locked: two
    batches with a key in common meet there, holding nothing that others wait for.
    """
    refused: list[tuple[UUID, Refusal]] = []
    if creations := _of_inbox(work):
        at_us = (await tx.begun()).at_us
        work, refused = _without(work, [_refused(creation, at_us) for creation in creations])
    if context.admission is not None and work.creations:
        verdicts = await context.admission.admit(tx, [c.request for c in work.creations])
        work, more = _without(work, verdicts)
        refused += more
    if keys := [c.key for c in work.creations if c.key is not None]:
        await context.store.reserve(tx, keys)
    return work, refused


def _refused(creation: Creation, at_us: int) -> Refusal | None:
    """Why it is refused before anything else is looked at. It may have expired since its claim."""
    expires_us = creation.asked.expires_us if creation.asked is not None else None
    expired = expires_us is not None and expires_us <= at_us
    return creation.refusal or (Refusal.EXPIRED if expired else None)


def _without(
    work: WriteBatch, verdicts: Sequence[Refusal | None]
) -> tuple[WriteBatch, list[tuple[UUID, Refusal]]]:
    """What is left of a batch without those that are refused, and these."""
    refused = [(t.id, v) for t, v in zip(work.batch, verdicts, strict=True) if v is not None]
    return work.only([verdict is None for verdict in verdicts]), refused


def _first_moves(context: EngineContext[Tx], work: WriteBatch) -> Moves:
    batch, rules = work.batch, context.rules
    places: dict[TransferKind, list[int]] = {}
    for place, transfer in enumerate(batch):
        places.setdefault(transfer.kind, []).append(place)
    if work.creations:
        requests = [creation.request for creation in work.creations]
        expire = any(r.lives_s is not None or r.expires_us is not None for r in requests)
        expiries = [request.expiry for request in requests] if expire else ()
        created = [MoveGroup(rules.created(kind), some) for kind, some in places.items()]
        return Moves(batch, created, expiries)
    moves = Moves(batch, [MoveGroup(rules.stays(kind), some) for kind, some in places.items()])
    if work.answers is not None:
        answered(context, moves, range(len(batch)), work.answers, context.terms(work.actor))
    return moves
