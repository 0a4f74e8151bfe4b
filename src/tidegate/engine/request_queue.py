"""Births: concurrent requests become transfers together, each exactly once."""

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
from tidegate.core.request import BATCH, USER, CheckedRequest, Request, fee_veto, own_refusal
from tidegate.engine.batch_replies import BatchReplies
from tidegate.engine.batch_timer import MANY, BatchTimer
from tidegate.engine.context import EngineContext
from tidegate.engine.id_clock import IdClock
from tidegate.engine.pending_request import (
    FollowTransfer,
    PendingRequest,
    Receipt,
    ReplyTarget,
    RequestResult,
    answer,
    grouped_by_key,
)
from tidegate.engine.request_batch import RequestBatch
from tidegate.engine.stopped import EngineStopped
from tidegate.engine.write_batch import pause_s, write

MAX_WAITING = 10_000
MAX_SHARE = 256  # Of one owner, once half of the places are taken.
MAX_REPLAYS = 1_000  # Requests that may only be answered if they are known already.
SHARED_SPACES = (USER, BATCH)  # Whose owners are people. Guilds and operators have no share.
MAX_BATCH = 1024
IN_FLIGHT = 2
LOOKS = 3  # A session that died while it was idle is found out by using it.


class RequestQueue(Generic[Tx]):
    def __init__(
        self, context: EngineContext[Tx], many: int = MANY, follow: FollowTransfer | None = None
    ) -> None:
        self._context, self._follow = context, follow
        self._waiting: deque[PendingRequest] = deque()
        self._replays: deque[PendingRequest] = deque()
        self._owners: dict[int, int] = {}  # How many requests of an owner wait.
        self._loop = asyncio.get_running_loop()  # To ask for it each time is a system call.
        self._id_time = IdClock(context.clock)
        self._batch_timer = BatchTimer(many)
        self._stopping = False
        self._died = ""  # Of what a loop of the engine has died.

    async def submit(self, request: Request, veto: Refusal | None = None) -> Receipt | Refusal:
        """Answered when the transfer is durable, wherever it rests then."""
        try:
            return await self.ask(request, veto)
        finally:
            self.left()

    def ask(
        self, request: Request, veto: Refusal | None = None, wait_s: float | None = None
    ) -> "asyncio.Future[Receipt | Refusal]":
        """Let a request in. Whoever has waited for the answer, or waits no longer, calls `left`."""
        answer: asyncio.Future[Receipt | Refusal] = self._loop.create_future()
        self._enter(request, veto, answer, wait_s)
        self._batch_timer.callers += 1
        self.wake()
        return answer

    def left(self) -> None:
        self._batch_timer.callers -= 1

    async def submit_all(
        self, asked: Sequence[CheckedRequest], wait_s: float | None = None
    ) -> list[RequestResult]:
        """As each by itself, in their order; answered when the last of them is."""
        tray = BatchReplies[RequestResult](len(asked))
        for each, place in zip(asked, tray.places(), strict=True):
            self._enter(each.request, each.veto, place, wait_s)
        self._batch_timer.callers += len(asked)
        self.wake()
        try:
            return await tray.filled()
        finally:
            self._batch_timer.callers -= len(asked)

    def _enter(
        self, request: Request, veto: Refusal | None, answer: ReplyTarget, wait_s: float | None
    ) -> None:
        """Let a request wait for its batch, or answer it at once."""
        if self._died:
            answer.set_exception(EngineStopped(self._died, maybe_accepted=False))
            return
        origin = self._context.origins.of(request)
        refusal = origin.absent or own_refusal(request) or origin.refusal
        if self._stopping:
            refusal = Refusal.OVERLOADED
        if request.fee and (flow := self._context.flows.get(request.flow)) is not None:
            veto = veto or fee_veto(request, flow)
        replay = veto is not None and request.cid is not None
        refusal = refusal or (None if replay else veto or self._crowded(request))
        if replay and len(self._replays) >= MAX_REPLAYS:
            refusal = refusal or veto
        if origin.kind is None or refusal is not None:
            answer.set_result(refusal or Refusal.INVALID_REQUEST)
            return
        # Whose accounts its creation will lock, if anybody's.
        locks = request.owner if origin.local and veto is None else None
        fingerprint = origin.fingerprint(request)
        pending = PendingRequest(request, origin.kind, answer, fingerprint, veto, wait_s, locks)
        if replay:
            self._replays.append(pending)
        else:
            self._waiting.append(pending)
            self._owners[request.owner] = self._owners.get(request.owner, 0) + 1

    def _crowded(self, request: Request) -> Refusal | None:
        """Whether there is no place for it: all are taken, or too many of them by its owner."""
        waiting = len(self._waiting)
        if waiting < MAX_WAITING // 2:
            return None
        shared = request.space in SHARED_SPACES
        greedy = shared and self._owners.get(request.owner, 0) >= MAX_SHARE
        return Refusal.OVERLOADED if waiting >= MAX_WAITING or greedy else None

    async def run(self) -> None:
        """Take what arrived while the batch before was on its way, when it is worth its price."""
        busy_owners, batch_timer = self._context.busy_owners, self._batch_timer
        while not (self._stopping and not self._here()):
            batch_timer.look()
            if not (self._stopping or await batch_timer.gathered(self._here())):
                continue
            if batch := self._chosen():
                batch_timer.left()
                with busy_owners.locking(pending.locks for pending in batch):
                    await self._deliver(batch)
            else:
                await batch_timer.rest()

    def _return(self, pending: PendingRequest) -> None:
        """Nothing became of it: it waits again, and is given a new id."""
        if self._died:
            answer(pending, EngineStopped(self._died, maybe_accepted=False))
            return
        for each in (*reversed(pending.followers), pending):
            each.followers = []
            self._waiting.appendleft(each)
            self._owners[each.request.owner] = self._owners.get(each.request.owner, 0) + 1
        self.wake()

    def _here(self) -> int:
        return len(self._waiting) + len(self._replays)

    def _chosen(self) -> list[PendingRequest]:
        chosen = self._context.busy_owners.choose(self._waiting, MAX_BATCH, attrgetter("locks"))
        owners = self._owners
        for pending in chosen:
            owner = pending.request.owner
            if owners[owner] == 1:
                del owners[owner]
            else:
                owners[owner] -= 1
        if self._replays:
            chosen += self._replays
            self._replays.clear()
        return chosen

    def wake(self) -> None:
        self._batch_timer.arrived(self._here())

    def stop(self) -> None:
        """Accept no more; what was accepted is still written."""
        self._stopping = True
        self._batch_timer.hurry()

    def die(self, cause: str) -> None:
        """Accept no more, and answer those whom no loop has taken: nothing became of them."""
        self._died = cause
        for waiting in (self._waiting, self._replays):
            while waiting:
                answer(waiting.popleft(), EngineStopped(cause, maybe_accepted=False))
        self.stop()

    async def _deliver(self, batch: Sequence[PendingRequest]) -> None:
        try:
            await self._write(batch)
        except BaseException as bug:
            # This loop ends with it. Its callers must not wait for ever, and nobody knows what
            # was committed. What waits must not be taken by another loop meanwhile.
            self.die(repr(bug))
            for pending in batch:
                answer(pending, EngineStopped(repr(bug), maybe_accepted=True))
            raise

    async def _write(self, batch: Sequence[PendingRequest]) -> None:
        context, first = self._context, grouped_by_key(batch)
        delivery = RequestBatch(context, self._id_time, self._return, self._follow)
        for attempt in range(LOOKS + 1):
            try:
                work = await delivery.begin(first)
                break
            except StoreUnavailable as fault:
                # Nothing was ever sent that could have been kept.
                if attempt == LOOKS or isinstance(fault, NoSession):
                    for pending in batch:
                        answer(pending, fault)
                    return
                await asyncio.sleep(pause_s(attempt, context.dice))
        await write(context, delivery, work)
