"""One batch of requests on its way to the store, and what each of its callers is told."""

from collections.abc import Callable, Sequence
from typing import Generic
from uuid import UUID

from msgspec.structs import replace

from tidegate.core.answers import Alarm
from tidegate.core.ids import HORIZON_S, time_ms, uuid_of
from tidegate.core.kind import Transfer
from tidegate.core.ports import (
    BelowFloor,
    KnownRequest,
    RequestKey,
    StoreFault,
    StoreUnavailable,
    Tx,
)
from tidegate.core.refusals import Refusal, kept_refusal
from tidegate.core.request import new_transfer
from tidegate.engine.alerts import Alert, AlertCode
from tidegate.engine.context import EngineContext
from tidegate.engine.id_clock import IdClock
from tidegate.engine.pending_request import (
    FollowTransfer,
    PendingRequest,
    Receipt,
    answer,
    reply,
)
from tidegate.engine.stopped import EngineStopped
from tidegate.engine.write_batch import BatchSource, Creation, WriteBatch, WriteResult


class RequestBatch(BatchSource, Generic[Tx]):
    """One batch of requests, and who is told what became of each."""

    def __init__(
        self,
        context: EngineContext[Tx],
        id_time: IdClock,
        return_: Callable[[PendingRequest], None],
        follow: FollowTransfer | None = None,
    ) -> None:
        self._context, self._id_time, self._return = context, id_time, return_
        self._follow = follow  # For callers who wait for the end of their transfer.
        self._looked = True  # Whether the store told the time of its ids.
        self._requests: dict[int, PendingRequest] = {}  # By the numbers of their ids.

    async def begin(self, batch: Sequence[PendingRequest]) -> WriteBatch:
        """Answer those that are known already, if that is to be looked up; give the others ids."""
        at_us = self._id_time.now_us() if all(map(_is_plain, batch)) else None
        open_, self._looked = list(batch), at_us is None
        if at_us is None:
            at_us, open_ = await self._look([p for p in batch if p.request.cid is not None])
            open_ += [p for p in batch if p.request.cid is None]
        # Ids take their time from the database's clock, so that all processes agree on it.
        time_bits, chance = at_us // 1000 << 80, self._context.dice.getrandbits(60) << 20
        for index, pending in enumerate(open_):
            id_ = uuid_of(time_bits | chance | index)
            pending.name(id_)
            self._requests[id_.int] = pending
        return self._work(open_)

    async def still_open(self, work: WriteBatch) -> WriteBatch:
        doubts = work.doubts
        if doubts and await self._context.store.aborted(doubts):
            doubts = ()
        at_us, open_ = await self._look([self._requests[t.id.int] for t in work.batch])
        late = [p for p in open_ if too_old(p.id, at_us)]
        for pending in late:
            self._refuse(pending, Refusal.TOO_LATE, doubts)
        return self._work([p for p in open_ if p not in late])._replace(doubts=doubts)

    async def _look(self, batch: Sequence[PendingRequest]) -> tuple[int, list[PendingRequest]]:
        """The time, and which requests are not known. The others are answered."""
        look = await self._context.store.look([key for pending in batch for key in pending.keys])
        known: dict[int, KnownRequest] = {}
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

    def _work(self, batch: Sequence[PendingRequest]) -> WriteBatch:
        transfers, creations = [], []
        for pending in batch:
            assert pending.id is not None
            request, key = pending.request, pending.key
            transfers.append(new_transfer(request, pending.kind, pending.id))
            creations.append(Creation(request, RequestKey(*key, pending.fingerprint, pending.id)))
        return WriteBatch(transfers, creations=creations)

    async def written(self, result: WriteResult) -> None:
        requests = self._requests
        for row in result.rows:
            pending = requests[row.id.int]
            if pending.followers:
                self._tell(pending, KnownRequest(pending.fingerprint, row.id, row))
            else:
                self._reply(pending, row)
        if result.refused:
            await self._refused(result)

    async def _refused(self, result: WriteResult) -> None:
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

    async def failed(self, work: WriteBatch, fault: Exception) -> None:
        if not (isinstance(fault, BelowFloor) or _as_fault(fault).retryable):
            cause = f"a request cannot be written: {fault}"
            self._context.alert(Alert(Alarm.PAGE, AlertCode.REQUEST_REFUSED, cause))
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

    def doubtful(self, work: WriteBatch) -> None:
        """It may have been committed: do not invite callers to ask again under another key."""
        for transfer in work.batch:
            self._accept(self._requests[transfer.id.int])

    def broken(self, work: WriteBatch, bug: BaseException) -> None:
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

    def _tell(self, pending: PendingRequest, known: KnownRequest) -> None:
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


def _is_of_older_version(found: KnownRequest, pending: PendingRequest) -> bool:
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
    made = new_transfer(pending.request, pending.kind, id_)
    return replace(made, created_us=at_us, updated_us=at_us)


def _as_fault(fault: Exception) -> StoreFault:
    return fault if isinstance(fault, StoreFault) else StoreFault(repr(fault))


def too_old(id_: UUID | None, at_us: int) -> bool:
    """Past half the horizon, a system might forget an operation while it is still being asked."""
    return id_ is not None and at_us // 1000 - time_ms(id_) > HORIZON_S * 1000 // 2
