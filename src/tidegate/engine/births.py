"""Births: concurrent requests become transfers together, each exactly once."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Generic
from uuid import UUID

from msgspec.structs import replace

from tidegate.core.answers import Alarm
from tidegate.core.ids import HORIZON_S, time_ms, uuid_of
from tidegate.core.ports import (
    BelowFloor,
    Key,
    Known,
    NoSession,
    StoreFault,
    StoreUnavailable,
    Tx,
)
from tidegate.core.refusals import Refusal, kept_refusal
from tidegate.core.request import BATCH, USER, Checked, Request, born, fee_veto, own_refusal
from tidegate.core.transfer import Transfer
from tidegate.engine.alerts import Alert, Code
from tidegate.engine.context import Means
from tidegate.engine.gathering import MANY, Gathering
from tidegate.engine.id_time import IdTime
from tidegate.engine.pending import (
    Answering,
    Follow,
    PendingRequest,
    Receipt,
    Said,
    answer,
    gathered,
    reply,
)
from tidegate.engine.stopped import EngineStopped
from tidegate.engine.tray import Tray
from tidegate.engine.write import Creation, Source, Work, Written, pause_s, write

__all__ = ["Births", "Delivery", "PendingRequest", "Receipt", "Said", "answer", "gathered"]

MAX_WAITING = 10_000
MAX_SHARE = 256  # Of one owner, once half of the places are taken.
MAX_REPLAYS = 1_000  # Requests that may only be answered if they are known already.
SHARED_SPACES = (USER, BATCH)  # Whose owners are people. Guilds and operators have no share.
MAX_BATCH = 1024
IN_FLIGHT = 2
LOOKS = 3  # A session that died while it was idle is found out by using it.


class Births(Generic[Tx]):
    def __init__(self, means: Means[Tx], many: int = MANY, follow: Follow | None = None) -> None:
        self._means, self._follow = means, follow
        self._waiting: deque[PendingRequest] = deque()
        self._replays: deque[PendingRequest] = deque()
        self._owners: dict[int, int] = {}  # How many requests of an owner wait.
        self._loop = asyncio.get_running_loop()  # To ask for it each time is a system call.
        self._id_time = IdTime(means.clock)
        self._gathering = Gathering(many)
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
        self._gathering.callers += 1
        self.wake()
        return answer

    def left(self) -> None:
        self._gathering.callers -= 1

    async def submit_all(self, asked: Sequence[Checked], wait_s: float | None = None) -> list[Said]:
        """As each by itself, in their order; answered when the last of them is."""
        tray = Tray[Said](len(asked))
        for each, place in zip(asked, tray.places(), strict=True):
            self._enter(each.request, each.veto, place, wait_s)
        self._gathering.callers += len(asked)
        self.wake()
        try:
            return await tray.filled()
        finally:
            self._gathering.callers -= len(asked)

    def _enter(
        self, request: Request, veto: Refusal | None, answer: Answering, wait_s: float | None
    ) -> None:
        """Let a request wait for its batch, or answer it at once."""
        if self._died:
            answer.set_exception(EngineStopped(self._died, maybe_accepted=False))
            return
        origin = self._means.origins.of(request)
        refusal = origin.absent or own_refusal(request) or origin.refusal
        if self._stopping:
            refusal = Refusal.OVERLOADED
        if request.fee and (flow := self._means.flows.get(request.flow)) is not None:
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
        apart, gathering = self._means.apart, self._gathering
        while not (self._stopping and not self._here()):
            gathering.look()
            if not (self._stopping or await gathering.gathered(self._here())):
                continue
            if batch := self._chosen():
                gathering.left()
                with apart.locking(pending.locks for pending in batch):
                    await self._deliver(batch)
            else:
                await gathering.rest()

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
        chosen = self._means.apart.choose(self._waiting, MAX_BATCH, attrgetter("locks"))
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
        self._gathering.arrived(self._here())

    def stop(self) -> None:
        """Accept no more; what was accepted is still written."""
        self._stopping = True
        self._gathering.hurry()

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
        means, first = self._means, gathered(batch)
        delivery = Delivery(means, self._id_time, self._return, self._follow)
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
                await asyncio.sleep(pause_s(attempt, means.dice))
        await write(means, delivery, work)


class Delivery(Source, Generic[Tx]):
    """One batch of requests, and who is told what became of each."""

    def __init__(
        self,
        means: Means[Tx],
        id_time: IdTime,
        return_: Callable[[PendingRequest], None],
        follow: Follow | None = None,
    ) -> None:
        self._means, self._id_time, self._return = means, id_time, return_
        self._follow = follow  # For callers who wait for the end of their transfer.
        self._looked = True  # Whether the store told the time of its ids.
        self._requests: dict[int, PendingRequest] = {}  # By the numbers of their ids.

    async def begin(self, batch: Sequence[PendingRequest]) -> Work:
        """Answer those that are known already, if that is to be looked up; give the others ids."""
        at_us = self._id_time.now_us() if all(map(_is_plain, batch)) else None
        open_, self._looked = list(batch), at_us is None
        if at_us is None:
            at_us, open_ = await self._look([p for p in batch if p.request.cid is not None])
            open_ += [p for p in batch if p.request.cid is None]
        # Ids take their time from the database's clock, so that all processes agree on it.
        time_bits, chance = at_us // 1000 << 80, self._means.dice.getrandbits(60) << 20
        for index, pending in enumerate(open_):
            id_ = uuid_of(time_bits | chance | index)
            pending.name(id_)
            self._requests[id_.int] = pending
        return self._work(open_)

    async def still_open(self, work: Work) -> Work:
        doubts = work.doubts
        if doubts and await self._means.store.aborted(doubts):
            doubts = ()
        at_us, open_ = await self._look([self._requests[t.id.int] for t in work.batch])
        late = [p for p in open_ if too_old(p.id, at_us)]
        for pending in late:
            self._refuse(pending, Refusal.TOO_LATE, doubts)
        return self._work([p for p in open_ if p not in late])._replace(doubts=doubts)

    async def _look(self, batch: Sequence[PendingRequest]) -> tuple[int, list[PendingRequest]]:
        """The time, and which requests are not known. The others are answered."""
        look = await self._means.store.look([key for pending in batch for key in pending.keys])
        known: dict[int, Known] = {}
        self._id_time.told(look.at_us)
        if any(look.known):
            self._id_time.repeated()
            asked = [(pending, key) for pending in batch for key in pending.keys]
            for (pending, key), found in zip(asked, look.known, strict=True):
                if found and (key == pending.key or _is_of_older_version(found, pending)):
                    known.setdefault(id(pending), found)
        open_ = []
        for pending in batch:
            if found := known.get(id(pending)):
                self._tell(pending, found)
            elif pending.veto is not None:
                answer(pending, pending.veto)
            else:
                open_.append(pending)
        return look.at_us, open_

    def _work(self, batch: Sequence[PendingRequest]) -> Work:
        transfers, creations = [], []
        for pending in batch:
            assert pending.id is not None
            request, key = pending.request, pending.key
            transfers.append(born(request, pending.kind, pending.id))
            creations.append(Creation(request, Key(*key, pending.fingerprint, pending.id)))
        return Work(transfers, creations=creations)

    async def written(self, result: Written) -> None:
        requests = self._requests
        for row in result.rows:
            pending = requests[row.id.int]
            if pending.followers:
                self._tell(pending, Known(pending.fingerprint, row.id, row))
            else:
                self._reply(pending, row)
        if result.refused:
            await self._refused(result)

    async def _refused(self, result: Written) -> None:
        """Look again first: another process may have made the same request meanwhile, by a COMMIT
        that was late. A limit that is full because of it must not be told as its refusal.
        """
        refused = {self._requests[id_.int]: refusal for id_, refusal in result.refused}
        keyed = [pending for pending in refused if pending.request.cid is not None]
        doubts = result.work.doubts
        try:
            _, open_ = await self._look(keyed)
        except StoreUnavailable as fault:
            open_ = keyed if doubts else []
            for pending in () if doubts else keyed:
                answer(pending, fault)
        for pending in (*open_, *(p for p in refused if p.request.cid is None)):
            self._refuse(pending, refused[pending], doubts)

    async def failed(self, work: Work, fault: Exception) -> None:
        if not (isinstance(fault, BelowFloor) or _as_fault(fault).retryable):
            cause = f"a request cannot be written: {fault}"
            self._means.alert(Alert(Alarm.PAGE, Code.REQUEST_REFUSED, cause))
        for transfer in work.batch:
            pending = self._requests[transfer.id.int]
            if work.doubts:
                self._accept(pending)
            elif isinstance(fault, BelowFloor) and not self._looked:
                self._id_time.forget()
                self._return(pending)
            elif isinstance(fault, BelowFloor):
                answer(pending, Refusal.TOO_LATE)
            else:
                answer(pending, _as_fault(fault))

    def doubtful(self, work: Work) -> None:
        """It may have been committed: nobody may be invited to ask for it under another key."""
        for transfer in work.batch:
            self._accept(self._requests[transfer.id.int])

    def broken(self, work: Work, bug: BaseException) -> None:
        for transfer in work.batch:
            answer(self._requests[transfer.id.int], EngineStopped(repr(bug), maybe_accepted=True))

    def _refuse(self, pending: PendingRequest, refusal: Refusal, doubts: Sequence[object]) -> None:
        """A refusal says that nothing moved. While an earlier try may have, it is not true."""
        if doubts:
            self._accept(pending)
        else:
            answer(pending, refusal)

    def _accept(self, pending: PendingRequest) -> None:
        assert pending.id is not None
        transfer = _expected(pending, pending.id)
        for each in (pending, *pending.followers):
            self._reply(each, transfer, duplicate=each is not pending)

    def _tell(self, pending: PendingRequest, known: Known) -> None:
        """The key stands for this transfer: tell all who asked under it for the same thing."""
        for each in (pending, *pending.followers):
            if each.fingerprint != known.fingerprint and not each.matches(known.fingerprint):
                reply(each, Refusal.IDEMPOTENCY_MISMATCH)
            elif known.refusal is not None:
                reply(each, kept_refusal(known.refusal))
            else:
                transfer = known.transfer or _expected(each, known.id)
                self._reply(each, transfer, duplicate=known.id != each.id)

    def _reply(self, pending: PendingRequest, row: Transfer, *, duplicate: bool = False) -> None:
        wait_s = pending.wait_s
        if pending.answer.done():
            pass  # The caller has gone.
        elif wait_s is None or row.kind.lane is None or self._follow is None:
            pending.answer.set_result(Receipt(row, duplicate))
        else:
            self._follow(pending.answer, row, wait_s, duplicate=duplicate)


def _is_plain(pending: PendingRequest) -> bool:
    """Whether it may be written without being looked up: a key that it has is its only one, and
    nothing speaks against it. If the key is known, to reserve it fails.
    """
    return pending.veto is None and not (pending.request.space and pending.request.cid)


def _is_of_older_version(found: Known, pending: PendingRequest) -> bool:
    """Whether an older version made this request's transfer under its key without a key space.

    Another kind of caller may have used the same text. Their transfers are of other flows. SQL
    wrote fingerprints of its own, so that the same request may differ in its fingerprint only.
    """
    request, made = pending.request, found.transfer
    same = made is not None and (made.flow, made.cid) == (request.flow, request.cid)
    return same or pending.matches(found.fingerprint)


def _expected(pending: PendingRequest, id_: UUID) -> Transfer:
    """The transfer that may not be written yet. It was asked for at the time of its id."""
    at_us = time_ms(id_) * 1000
    made = born(pending.request, pending.kind, id_)
    return replace(made, created_us=at_us, updated_us=at_us)


def _as_fault(fault: Exception) -> StoreFault:
    return fault if isinstance(fault, StoreFault) else StoreFault(repr(fault))


def too_old(id_: UUID | None, at_us: int) -> bool:
    """Past half the horizon, a system might forget an operation while it is still being asked."""
    return id_ is not None and at_us // 1000 - time_ms(id_) > HORIZON_S * 1000 // 2
