"""One batch of requests while it is written, and the reply to each of its callers."""

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
from tidegate.core.refusals import Refusal, stored_refusal
from tidegate.core.request import new_transfer
from tidegate.engine.alerts import Alert, AlertCode
from tidegate.engine.context import EngineContext
from tidegate.engine.id_clock import IdClock
from tidegate.engine.pending_request import (
    FollowTransfer,
    PendingRequest,
    Receipt,
    reply_to,
    reply_to_all,
)
from tidegate.engine.stopped import EngineStopped
from tidegate.engine.write_batch import BatchSource, Creation, WriteBatch, WriteResult


class RequestBatch(BatchSource, Generic[Tx]):
    """One batch of requests. It replies to every caller exactly once."""

    def __init__(
        self,
        context: EngineContext[Tx],
        id_time: IdClock,
        requeue: Callable[[PendingRequest], None],
        follow: FollowTransfer | None = None,
    ) -> None:
        self._context, self._id_time, self._requeue = context, id_time, requeue
        self._follow = follow  # For callers that wait for the end of their transfer.
        self._time_from_store = True  # Whether the time in its ids was just read from the store.
        self._requests: dict[int, PendingRequest] = {}  # By the integer value of their ids.

    async def begin(self, batch: Sequence[PendingRequest]) -> WriteBatch:
        """Look the keys up if that is needed, and reply to known ones. Give the others ids."""
        at_us = self._id_time.now_us() if all(map(_needs_no_lookup, batch)) else None
        unknown, self._time_from_store = list(batch), at_us is None
        if at_us is None:
            at_us, unknown = await self._look_up([p for p in batch if p.request.cid is not None])
            unknown += [p for p in batch if p.request.cid is None]
        # The time of an id is the database's, so that all processes agree on it.
        time_bits, random_bits = at_us // 1000 << 80, self._context.dice.getrandbits(60) << 20
        for index, pending in enumerate(unknown):
            id_ = uuid_of(time_bits | random_bits | index)
            pending.assign_id(id_)
            self._requests[id_.int] = pending
        return self._work(unknown)

    async def still_open(self, work: WriteBatch) -> WriteBatch:
        doubts = work.doubts
        if doubts and await self._context.store.aborted(doubts):
            doubts = ()
        at_us, unknown = await self._look_up([self._requests[t.id.int] for t in work.batch])
        too_late = [p for p in unknown if _too_old(p.id, at_us)]
        for pending in too_late:
            self._refuse(pending, Refusal.TOO_LATE, doubts)
        return self._work([p for p in unknown if p not in too_late])._replace(doubts=doubts)

    async def _look_up(self, batch: Sequence[PendingRequest]) -> tuple[int, list[PendingRequest]]:
        """Return the store's time and the requests that are not known. Reply to the others."""
        keys = [(pending, key) for pending in batch for key in pending.keys]
        lookup = await self._context.store.look([key for _, key in keys])
        known: dict[int, KnownRequest] = {}
        self._id_time.set_time(lookup.at_us)
        if any(lookup.known):
            self._id_time.note_repeat()
            for (pending, key), found in zip(keys, lookup.known, strict=True):
                if found and (key == pending.key or _is_of_older_version(found, pending)):
                    known.setdefault(id(pending), found)
        unknown = []
        for pending in batch:
            if found := known.get(id(pending)):
                self._reply_known(pending, found)
            elif pending.veto is not None:
                reply_to_all(pending, pending.veto)
            else:
                unknown.append(pending)
        return lookup.at_us, unknown

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
                self._reply_known(pending, KnownRequest(pending.fingerprint, row.id, row))
            else:
                self._reply(pending, row)
        if result.refused:
            await self._refused(result)

    async def _refused(self, result: WriteResult) -> None:
        """Look the keys up before refusing: another process may have created the same transfer by
        a COMMIT that was late. If that transfer used up a limit, this request is not refused.
        """
        refusals = {self._requests[id_.int]: refusal for id_, refusal in result.refused}
        with_cid = [pending for pending in refusals if pending.request.cid is not None]
        doubts = result.work.doubts
        try:
            _, unknown = await self._look_up(with_cid)
        except StoreUnavailable as fault:
            unknown = with_cid if doubts else []
            for pending in () if doubts else with_cid:
                reply_to_all(pending, fault)
        for pending in (*unknown, *(p for p in refusals if p.request.cid is None)):
            self._refuse(pending, refusals[pending], doubts)

    async def failed(self, work: WriteBatch, fault: Exception) -> None:
        if not (isinstance(fault, BelowFloor) or _as_store_fault(fault).retryable):
            message = f"a request cannot be written: {fault}"
            self._context.alert(Alert(Alarm.PAGE, AlertCode.REQUEST_REFUSED, message))
        for transfer in work.batch:
            pending = self._requests[transfer.id.int]
            if work.doubts:
                self._accept(pending)
            elif isinstance(fault, BelowFloor) and not self._time_from_store:
                self._id_time.forget()
                self._requeue(pending)
            elif isinstance(fault, BelowFloor):
                reply_to_all(pending, Refusal.TOO_LATE)
            else:
                reply_to_all(pending, _as_store_fault(fault))

    def doubtful(self, work: WriteBatch) -> None:
        """Reply that it is accepted: a caller that gets an error may retry with another key."""
        for transfer in work.batch:
            self._accept(self._requests[transfer.id.int])

    def broken(self, work: WriteBatch, bug: BaseException) -> None:
        for transfer in work.batch:
            pending = self._requests[transfer.id.int]
            reply_to_all(pending, EngineStopped(repr(bug), maybe_accepted=True))

    def _refuse(self, pending: PendingRequest, refusal: Refusal, doubts: Sequence[object]) -> None:
        """A refusal means that no money moved. If an earlier try may have committed, accept."""
        if doubts:
            self._accept(pending)
        else:
            reply_to_all(pending, refusal)

    def _accept(self, pending: PendingRequest) -> None:
        assert pending.id is not None
        transfer = _expected(pending, pending.id)
        for entry in (pending, *pending.followers):
            self._reply(entry, transfer, duplicate=entry is not pending)

    def _reply_known(self, pending: PendingRequest, known: KnownRequest) -> None:
        """Reply with the transfer of the key to each request that asks for the same transfer."""
        for entry in (pending, *pending.followers):
            if entry.fingerprint != known.fingerprint and not entry.matches(known.fingerprint):
                reply_to(entry, Refusal.IDEMPOTENCY_MISMATCH)
            elif known.refusal is not None:
                reply_to(entry, stored_refusal(known.refusal))
            else:
                transfer = known.transfer or _expected(entry, known.id)
                self._reply(entry, transfer, duplicate=known.id != entry.id)

    def _reply(self, pending: PendingRequest, row: Transfer, *, duplicate: bool = False) -> None:
        wait_s = pending.wait_s
        if pending.target.done():
            pass  # The caller was cancelled, or has been answered.
        elif wait_s is None or row.kind.lane is None or self._follow is None:
            pending.target.set_result(Receipt(row, duplicate))
        else:
            self._follow(pending.target, row, wait_s, duplicate=duplicate)


def _needs_no_lookup(pending: PendingRequest) -> bool:
    """Whether it may be written without a lookup: it has no veto, and at most one key.

    If that key exists, reserving it fails the transaction, and the keys are looked up then.
    """
    return pending.veto is None and not (pending.request.space and pending.request.cid)


def _is_of_older_version(found: KnownRequest, pending: PendingRequest) -> bool:
    """Whether an older version made this request's transfer, under its key without a key space.

    Another kind of caller may have used the same text as its cid; the flow of its transfer differs.
    The SQL of older versions wrote other fingerprints, so the same request may differ in that.
    """
    request, transfer = pending.request, found.transfer
    same = transfer is not None and (transfer.flow, transfer.cid) == (request.flow, request.cid)
    return same or pending.matches(found.fingerprint)


def _expected(pending: PendingRequest, id_: UUID) -> Transfer:
    """The transfer as it will be if it is written. Its id contains the time of the request."""
    at_us = time_ms(id_) * 1000
    transfer = new_transfer(pending.request, pending.kind, id_)
    return replace(transfer, created_us=at_us, updated_us=at_us)


def _as_store_fault(fault: Exception) -> StoreFault:
    return fault if isinstance(fault, StoreFault) else StoreFault(repr(fault))


def _too_old(id_: UUID | None, at_us: int) -> bool:
    """After half the horizon a system might forget the operation while we still ask about it."""
    return id_ is not None and at_us // 1000 - time_ms(id_) > HORIZON_S * 1000 // 2
