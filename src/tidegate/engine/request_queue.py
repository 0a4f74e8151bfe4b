"""The queue of requests: concurrent requests become transfers in batches, each exactly once."""

import asyncio
from collections import deque
from collections.abc import Sequence
from operator import attrgetter
from typing import Generic

from tidegate.core.ports import (
    NoSession,
    StoreUnavailable,
    Tx,
)
from tidegate.core.refusals import Refusal
from tidegate.core.request import BATCH, USER, CheckedRequest, Request, fee_veto, fields_refusal
from tidegate.engine.batch_replies import BatchReplies
from tidegate.engine.batch_timer import MANY_CALLERS, BatchTimer
from tidegate.engine.context import EngineContext
from tidegate.engine.id_clock import IdClock
from tidegate.engine.pending_request import (
    FollowTransfer,
    PendingRequest,
    Receipt,
    ReplyTarget,
    RequestResult,
    grouped_by_key,
    reply_to_all,
)
from tidegate.engine.request_batch import RequestBatch
from tidegate.engine.stopped import EngineStopped
from tidegate.engine.write_batch import retry_delay_s, write

MAX_WAITING = 10_000
MAX_SHARE = 256  # Of one owner, once the queue is half full.
MAX_REPLAYS = 1_000  # Requests that get a transfer only if their key is known already.
SHARED_SPACES = (USER, BATCH)  # Their owners are single users. Guilds and operators have no limit.
MAX_BATCH = 1024
QUEUE_LOOPS = 2
LOOKUP_RETRIES = 3  # A session that was lost while idle is noticed only when it is used.


class RequestQueue(Generic[Tx]):
    """Queues requests, and writes them in batches by the loops that call `run`."""

    def __init__(
        self,
        context: EngineContext[Tx],
        many_callers: int = MANY_CALLERS,
        follow: FollowTransfer | None = None,
    ) -> None:
        self._context, self._follow = context, follow
        self._waiting: deque[PendingRequest] = deque()
        self._replays: deque[PendingRequest] = deque()
        self._owners: dict[int, int] = {}  # Number of waiting requests by owner.
        self._loop = asyncio.get_running_loop()  # Kept, because looking it up is a system call.
        self._id_time = IdClock(context.clock)
        self._batch_timer = BatchTimer(many_callers)
        self._stopping = False
        self._died = ""  # The reason, if a loop of the engine has failed.

    async def submit(self, request: Request, veto: Refusal | None = None) -> Receipt | Refusal:
        """Return when the transfer is durable, in whatever state it is then."""
        try:
            return await self.enqueue(request, veto)
        finally:
            self.caller_left()

    def enqueue(
        self, request: Request, veto: Refusal | None = None, wait_s: float | None = None
    ) -> "asyncio.Future[Receipt | Refusal]":
        """Add a request. The caller must call `caller_left` when it stops waiting for the reply."""
        reply: asyncio.Future[Receipt | Refusal] = self._loop.create_future()
        self._add(request, veto, reply, wait_s)
        self._batch_timer.callers += 1
        self.wake()
        return reply

    def caller_left(self) -> None:
        self._batch_timer.callers -= 1

    async def submit_all(
        self, requests: Sequence[CheckedRequest], wait_s: float | None = None
    ) -> list[RequestResult]:
        """Treat each request as if it were submitted alone. Return all results in their order."""
        replies = BatchReplies[RequestResult](len(requests))
        for checked, target in zip(requests, replies.targets(), strict=True):
            self._add(checked.request, checked.veto, target, wait_s)
        self._batch_timer.callers += len(requests)
        self.wake()
        try:
            return await replies.collect()
        finally:
            self._batch_timer.callers -= len(requests)

    def _add(
        self, request: Request, veto: Refusal | None, target: ReplyTarget, wait_s: float | None
    ) -> None:
        """Queue a request, or reply to it at once."""
        if self._died:
            target.set_exception(EngineStopped(self._died, maybe_accepted=False))
            return
        kind = self._context.request_kinds.of(request)
        refusal = kind.unsupported or fields_refusal(request) or kind.refusal
        if self._stopping:
            refusal = Refusal.OVERLOADED
        if request.fee and (flow := self._context.flows.get(request.flow)) is not None:
            veto = veto or fee_veto(request, flow)
        replay = veto is not None and request.cid is not None
        refusal = refusal or (None if replay else veto or self._overload(request))
        if replay and len(self._replays) >= MAX_REPLAYS:
            refusal = refusal or veto
        if kind.transfer_kind is None or refusal is not None:
            target.set_result(refusal or Refusal.INVALID_REQUEST)
            return
        locks = request.owner if kind.local and veto is None else None
        fingerprint = kind.fingerprint(request)
        pending = PendingRequest(
            request, kind.transfer_kind, target, fingerprint, veto, wait_s, locks
        )
        if replay:
            self._replays.append(pending)
        else:
            self._waiting.append(pending)
            self._owners[request.owner] = self._owners.get(request.owner, 0) + 1

    def _overload(self, request: Request) -> Refusal | None:
        """OVERLOADED if the queue is full, or if its owner has used up an owner's share."""
        waiting = len(self._waiting)
        if waiting < MAX_WAITING // 2:
            return None
        shared = request.space in SHARED_SPACES
        over_share = shared and self._owners.get(request.owner, 0) >= MAX_SHARE
        return Refusal.OVERLOADED if waiting >= MAX_WAITING or over_share else None

    async def run(self) -> None:
        """Write what has arrived during the previous batch, when the batch timer allows it."""
        busy_owners, batch_timer = self._context.busy_owners, self._batch_timer
        while not (self._stopping and not self._count()):
            batch_timer.clear()
            if not (self._stopping or await batch_timer.is_ready(self._count())):
                continue
            if batch := self._take_batch():
                batch_timer.batch_taken()
                with busy_owners.locking(pending.locks for pending in batch):
                    await self._deliver(batch)
            else:
                await batch_timer.wait()

    def _requeue(self, pending: PendingRequest) -> None:
        """Nothing was written for it: it waits again, and gets a new id."""
        if self._died:
            reply_to_all(pending, EngineStopped(self._died, maybe_accepted=False))
            return
        for entry in (*reversed(pending.followers), pending):
            entry.followers = []
            self._waiting.appendleft(entry)
            owner = entry.request.owner
            self._owners[owner] = self._owners.get(owner, 0) + 1
        self.wake()

    def _count(self) -> int:
        return len(self._waiting) + len(self._replays)

    def _take_batch(self) -> list[PendingRequest]:
        batch = self._context.busy_owners.choose(self._waiting, MAX_BATCH, attrgetter("locks"))
        owners = self._owners
        for pending in batch:
            owner = pending.request.owner
            if owners[owner] == 1:
                del owners[owner]
            else:
                owners[owner] -= 1
        if self._replays:
            batch += self._replays
            self._replays.clear()
        return batch

    def wake(self) -> None:
        self._batch_timer.notify(self._count())

    def stop(self) -> None:
        """Accept no more requests. Those that wait are still written."""
        self._stopping = True
        self._batch_timer.wake()

    def die(self, reason: str) -> None:
        """Accept no more requests. Reply to those that wait: nothing was written for them."""
        self._died = reason
        for waiting in (self._waiting, self._replays):
            while waiting:
                reply_to_all(waiting.popleft(), EngineStopped(reason, maybe_accepted=False))
        self.stop()

    async def _deliver(self, batch: Sequence[PendingRequest]) -> None:
        try:
            await self._write(batch)
        except BaseException as bug:
            # This loop ends. Its callers must not wait forever, and it is unknown what was
            # committed. First empty the queue, so that the other loop takes nothing meanwhile.
            self.die(repr(bug))
            for pending in batch:
                reply_to_all(pending, EngineStopped(repr(bug), maybe_accepted=True))
            raise

    async def _write(self, batch: Sequence[PendingRequest]) -> None:
        context, unique = self._context, grouped_by_key(batch)
        source = RequestBatch(context, self._id_time, self._requeue, self._follow)
        for tries in range(LOOKUP_RETRIES + 1):
            try:
                work = await source.begin(unique)
                break
            except StoreUnavailable as fault:
                # Only the lookup has failed: nothing was written.
                if tries == LOOKUP_RETRIES or isinstance(fault, NoSession):
                    for pending in batch:
                        reply_to_all(pending, fault)
                    return
                await asyncio.sleep(retry_delay_s(tries, context.dice))
        await write(context, source, work)
