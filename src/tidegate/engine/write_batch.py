"""Creates and moves transfers: one batch in one transaction.

Every batch locks its rows, asks local systems, writes, notifies listeners and commits; then it
hands transfers over and raises alerts. A batch that cannot be written is halved to find the row.
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
    apply_answers,
    ask_local_systems,
    decide_requests,
    local_groups,
    lock_accounts,
    notify_listeners,
)
from tidegate.engine.move_alerts import announce
from tidegate.engine.ring import RingReservation

TRIES = 8
LOCK_WAITS = 2  # Lock timeouts in a row. Then the batch is halved, to free the other rows.
LOCK_TRIES = 24  # With short lock waits: about as long in all as TRIES with long ones.
MAX_KEY_RACES = 16  # If a key is taken more often, it is no race: the lookup does not find it.
HELD_S = 60.0  # How long rows that need an account locked elsewhere are separated from others.
MAX_HELD_ACCOUNTS = 10_000
RETRY_FIRST_S, RETRY_CAP_S, RETRY_DOUBLINGS = 0.02, 1.0, 10


class BatchPace(Enum):
    """Where a batch is written: in the loop that brought it, or in a task of its own."""

    IN_LOOP = 0
    DETACHED = 1  # It is unknown whether its COMMIT happened, or one row cannot be written.
    SHORT_WAITS = 2  # An account is locked elsewhere: wait briefly per try, to free the session.


class Creation(msgspec.Struct, frozen=True):
    """What the creation of a transfer needs besides the transfer itself."""

    request: Request
    key: RequestKey | None = None  # To be reserved. None: the inbox has reserved it.
    inbox_request: InboxRequest | None = None  # If it comes from the inbox.
    refusal: Refusal | None = None  # If it is refused already: only the refusal is written.


class WriteBatch(NamedTuple):
    """A batch to write: transfers to create if it has creations, else existing ones to move."""

    batch: Sequence[Transfer]
    answers: Sequence[Answer] | None = None  # None: local systems are asked after locking.
    lane: str | None = None
    actor: str = ""  # The operator who answered, if it was not a system.
    creations: Sequence[Creation] = ()
    # The transactions of tries whose COMMIT got no reply: each may have happened, or may still.
    doubts: tuple[str | None, ...] = ()

    def select(self, chosen: Sequence[bool]) -> "WriteBatch":
        if all(chosen):
            return self
        return self._replace(
            batch=list(compress(self.batch, chosen)),
            answers=None if self.answers is None else list(compress(self.answers, chosen)),
            creations=list(compress(self.creations, chosen)),
        )


class WriteResult(NamedTuple):
    """What one transaction wrote and what it refused, after it has committed."""

    work: WriteBatch
    rows: Sequence[Transfer] = ()
    refused: Sequence[tuple[UUID, Refusal]] = ()


class BatchSource:
    """Brings batches, and learns the result of each."""

    async def still_open(self, work: WriteBatch) -> WriteBatch:
        """Called before another try. Reply to what is decided by now, and return the rest."""
        return work

    async def written(self, result: WriteResult) -> None: ...

    async def failed(self, work: WriteBatch, fault: Exception) -> None:
        """It was rolled back. It is not tried again now."""

    def doubtful(self, work: WriteBatch) -> None:
        """It is still unknown whether it was committed, after many tries. The tries go on."""

    def broken(self, work: WriteBatch, bug: BaseException) -> None:
        """Its own task failed with a bug. The engine stops."""


class _HaltedNow(Exception):
    """A halt is active, so nothing may be created: the transaction is rolled back."""


async def write(
    context: EngineContext[Tx],
    source: BatchSource,
    work: WriteBatch,
    *,
    pace: BatchPace = BatchPace.IN_LOOP,
) -> None:
    """Write a batch: retry while that can help, then halve it.

    A batch without a reply to its COMMIT, or one that waits for a lock, continues in its own task.
    """
    if context.held_accounts and pace is BatchPace.IN_LOOP:
        work = await _without_held(context, source, work)
    lock_waits = key_races = 0
    for tries in count():
        try:
            if tries or work.doubts:
                work = await source.still_open(work)
            if work.batch:
                await source.written(await _write_at(context, work, pace))
            return  # noqa: TRY300  The rest of the loop is for faults.
        except Exception as fault:
            if work.creations and not isinstance(fault, StoreFault):
                raise  # A bug: it is unknown what was done for the requests.
            if isinstance(fault, CommitUnknown) and work.creations:
                work = work._replace(doubts=(*work.doubts, fault.xid))
            lock_waits = lock_waits + 1 if isinstance(fault, LockTimeout) else 0
            key_races += isinstance(fault, KeyTaken)
            retry_helps = _retry_helps(fault, key_races)
            locked = lock_waits >= (1 if pace is BatchPace.SHORT_WAITS else LOCK_WAITS)
            parts = _parts(context, work, locked=locked)
            if len(parts) > 1 and (not retry_helps or (locked and pace is not BatchPace.IN_LOOP)):
                # Concurrently: the half without the bad row does not wait for the other half.
                works = (write(context, source, part, pace=pace) for part in parts)
                await context.detached.run_all(works)
                return
            if lock_waits and len(parts) == 1:
                _mark_held(context, work)
            if not retry_helps or (_out_of_tries(fault, tries, pace) and not work.doubts):
                await source.failed(work, fault)
                return
            if work.doubts and tries >= TRIES - 1:
                source.doubtful(work)
        if (work.doubts or locked) and pace is BatchPace.IN_LOOP:
            pace = BatchPace.DETACHED if work.doubts else BatchPace.SHORT_WAITS
            await _detach(context, source, work, pace)
            return
        await asyncio.sleep(retry_delay_s(tries, context.dice))


def _retry_helps(fault: Exception, key_races: int) -> bool:
    """Whether the same batch may succeed later."""
    if isinstance(fault, KeyTaken):
        return key_races < MAX_KEY_RACES  # The key is committed: the next lookup finds it.
    return isinstance(fault, StoreFault) and fault.retryable


def _out_of_tries(fault: Exception, tries: int, pace: BatchPace) -> bool:
    if isinstance(fault, KeyTaken):
        return False  # The next lookup replies to its caller.
    limit = LOCK_TRIES if pace is BatchPace.SHORT_WAITS else TRIES
    return tries >= limit - 1 or isinstance(fault, NoSession)


def _parts(context: EngineContext[Tx], work: WriteBatch, *, locked: bool) -> list[WriteBatch]:
    """Halve a batch; one that cannot be divided is one part. If it waits for locks, rows with the
    same accounts stay in one half: otherwise one half would wait for the other.
    """
    rows = range(len(work.batch))
    units: Sequence[Hashable] = rows
    if locked:
        units = [_accounts(context, work, row) or work.batch[row].id for row in rows]
    first = frozenset(list(dict.fromkeys(units))[::2])
    halves = [[(unit in first) is half for unit in units] for half in (True, False)]
    return [work.select(half) for half in halves if any(half)]


async def _detach(
    context: EngineContext[Tx], source: BatchSource, work: WriteBatch, pace: BatchPace
) -> None:
    writing = write(context, source, work, pace=pace)
    await context.detached.start(writing, lambda bug: source.broken(work, bug))


def _accounts(context: EngineContext[Tx], work: WriteBatch, row: int) -> frozenset[Account]:
    """The accounts that a row locks, as far as they are known before the transaction."""
    transfer = work.batch[row]
    if work.creations and transfer.lane not in context.local:
        return frozenset()
    if not _uses_local_system(context, transfer.kind):
        return frozenset()
    parties = (party for party in transfer.parties.values() if party.system in context.local)
    return frozenset(Account(p.owner, p.book, transfer.asset_id) for p in parties)


def _mark_held(context: EngineContext[Tx], work: WriteBatch) -> None:
    """Separate the accounts of this batch from now on: one of them is locked elsewhere."""
    room = len(context.held_accounts) < MAX_HELD_ACCOUNTS
    for account in _accounts(context, work, 0) if room else ():
        context.held_accounts[account] = context.clock() + HELD_S


async def _without_held(
    context: EngineContext[Tx], source: BatchSource, work: WriteBatch
) -> WriteBatch:
    """Write the rows that need held accounts in a task of their own. Return the other rows."""
    held_accounts, now_s = context.held_accounts, context.clock()
    for account in [account for account, until_s in held_accounts.items() if until_s <= now_s]:
        del held_accounts[account]
    rows = range(len(work.batch))
    held = [not held_accounts.keys().isdisjoint(_accounts(context, work, row)) for row in rows]
    if any(held):
        part = work.select(held)
        if not await context.detached.start_held(
            lambda: write(context, source, part, pace=BatchPace.SHORT_WAITS),
            lambda bug: source.broken(part, bug),
        ):
            # Too many such tasks run. A lane raises the fault again: its rows become due again.
            with suppress(StoreUnavailable):
                await source.failed(part, LockTimeout("an account is locked, too many wait for it"))
    return work.select([not is_held for is_held in held])


def retry_delay_s(tries: int, dice: random.Random) -> float:
    """The delay before another try of a transaction that the database could not take."""
    full: float = min(RETRY_FIRST_S * 2 ** min(tries, RETRY_DOUBLINGS), RETRY_CAP_S)
    return full * (0.5 + dice.random() / 2)


async def _write_at(context: EngineContext[Tx], work: WriteBatch, pace: BatchPace) -> WriteResult:
    if pace is BatchPace.IN_LOOP:
        return await _write_once(context, work)
    brief = pace is BatchPace.SHORT_WAITS and not work.doubts
    async with context.detached.sessions:
        return await _write_once(context, work, brief=brief)


async def _write_once(
    context: EngineContext[Tx], work: WriteBatch, *, brief: bool = False
) -> WriteResult:
    entries = RingReservation(context.rings, context.clock() + context.store.lease_s)
    try:
        with context.busy_owners.locking(_unmarked_owners(context, work)):
            result, moves = await _transact(context, work, entries, brief=brief)
    except _HaltedNow:
        entries.free()
        nothing = WriteBatch((), doubts=work.doubts)
        return WriteResult(nothing, refused=[(t.id, Refusal.HALTED) for t in work.batch])
    except BaseException:
        entries.free()
        raise
    for row in range(len(result.work.batch)) if context.held_accounts else ():
        for account in _accounts(context, result.work, row):
            context.held_accounts.pop(account, None)
    context.wake_lanes(entries.hand_over(result.rows))
    await announce(context, moves, result.rows)
    return result


def _unmarked_owners(context: EngineContext[Tx], work: WriteBatch) -> Iterable[int | None]:
    """The owners to mark as busy. The request queue has marked those of its requests already."""
    marked = work.creations and not _inbox_creations(work)
    return () if marked else owners_locked(context, work.batch)


def owners_locked(context: EngineContext[Tx], transfers: Sequence[Transfer]) -> list[int]:
    """The owners for whom a local system is asked now, or right after the expected answer Done."""
    kinds = {kind for kind in {t.kind for t in transfers} if _uses_local_system(context, kind)}
    return [t.owner for t in transfers if t.kind in kinds]


def _uses_local_system(context: EngineContext[Tx], kind: TransferKind) -> bool:
    local = context.local
    return kind.lane is None or kind.lane in local or context.rules.next_lane(kind) in local


async def _transact(
    context: EngineContext[Tx], work: WriteBatch, entries: RingReservation, *, brief: bool = False
) -> tuple[WriteResult, Moves]:
    store = context.store
    refused: list[tuple[UUID, Refusal]] = []
    rows: Sequence[Transfer] = ()
    async with store.transaction() as tx:
        if brief:
            await tx.wait_briefly()
        inbox = {r.id: r for c in _inbox_creations(work) if (r := c.inbox_request) is not None}
        if inbox:
            undecided = frozenset(await store.inbox.take(tx, list(inbox)))
            work = work.select([t.id in undecided for t in work.batch])
        if work.creations:
            work, refused = await _admit(context, tx, work)
        moves = _first_moves(context, work)
        groups = local_groups(context, moves)
        lock = partial(lock_accounts, context, tx, moves, groups)
        if work.creations:
            await lock()
        else:
            # The accounts are locked in the round trip of the rows, as if no row had moved since.
            locked = await store.lock(tx, work.batch, lock)
            if locked is not work.batch:
                ids = {transfer.id for transfer in locked}
                work = work.select([t.id in ids for t in work.batch])._replace(batch=locked)
                moves = _first_moves(context, work)
                groups = local_groups(context, moves)
        if moves:
            halted = (await tx.begun()).halted
            if halted and work.creations:
                raise _HaltedNow
            await ask_local_systems(context, tx, moves, groups)
            rows = await store.write(tx, moves, entries.reserve(moves, halted=halted))
            await notify_listeners(context, tx, moves)
        if inbox and (rows or refused):
            refusals = [(inbox[id_], refusal) for id_, refusal in refused]
            await decide_requests(context, tx, [row.id for row in rows], refusals)
        if work.lane in context.remembering:
            await context.remembering[str(work.lane)].remember(tx)
    return WriteResult(work, rows, refused), moves


def _inbox_creations(work: WriteBatch) -> Sequence[Creation]:
    """Its creations, if they come from the inbox. All creations of a batch have one source."""
    return work.creations if work.creations and work.creations[0].inbox_request else ()


async def _admit(
    context: EngineContext[Tx], tx: Tx, work: WriteBatch
) -> tuple[WriteBatch, list[tuple[UUID, Refusal]]]:
    """Leave out the transfers that are refused, and reserve the keys of the others. This comes
    before any lock: a batch that waits here for a common key must not hold locks of accounts.
    """
    refused: list[tuple[UUID, Refusal]] = []
    if creations := _inbox_creations(work):
        at_us = (await tx.begun()).at_us
        work, refused = _without(work, [_early_refusal(creation, at_us) for creation in creations])
    if context.admission is not None and work.creations:
        verdicts = await context.admission.admit(tx, [c.request for c in work.creations])
        work, not_admitted = _without(work, verdicts)
        refused += not_admitted
    if keys := [c.key for c in work.creations if c.key is not None]:
        await context.store.reserve(tx, keys)
    return work, refused


def _early_refusal(creation: Creation, at_us: int) -> Refusal | None:
    """Why it is refused without further checks. It may have expired since it was claimed."""
    inbox_request = creation.inbox_request
    expires_us = None if inbox_request is None else inbox_request.expires_us
    expired = expires_us is not None and expires_us <= at_us
    return creation.refusal or (Refusal.EXPIRED if expired else None)


def _without(
    work: WriteBatch, verdicts: Sequence[Refusal | None]
) -> tuple[WriteBatch, list[tuple[UUID, Refusal]]]:
    """The batch without the transfers that are refused, and their refusals."""
    refused = [(t.id, v) for t, v in zip(work.batch, verdicts, strict=True) if v is not None]
    return work.select([verdict is None for verdict in verdicts]), refused


def _first_moves(context: EngineContext[Tx], work: WriteBatch) -> Moves:
    batch, rules = work.batch, context.rules
    kinds: dict[TransferKind, list[int]] = {}
    for index, transfer in enumerate(batch):
        kinds.setdefault(transfer.kind, []).append(index)
    if work.creations:
        requests = [creation.request for creation in work.creations]
        expire = any(r.lives_s is not None or r.expires_us is not None for r in requests)
        expiries = [request.expiry for request in requests] if expire else ()
        groups = [MoveGroup(rules.created(kind), indexes) for kind, indexes in kinds.items()]
        return Moves(batch, groups, expiries)
    moves = Moves(batch, [MoveGroup(rules.unchanged(k), indexes) for k, indexes in kinds.items()])
    if work.answers is not None:
        decision = context.decision_context(work.actor)
        apply_answers(context, moves, range(len(batch)), work.answers, decision)
    return moves
