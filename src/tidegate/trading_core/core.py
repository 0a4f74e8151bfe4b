"""The core: judge, append, sync, apply, answer; one batch at a time.

Requests that arrive while a batch is being synced form the next batch. Until a batch is durable,
memory is not changed and no request of it is answered, not even a duplicate.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, TypeAlias
from uuid import UUID

from tidegate.core import wire
from tidegate.core.ids import Horizon
from tidegate.core.wire import (
    STAMP,
    Binding,
    FrameKind,
    Hello,
    HistoryMark,
    RefusalFrame,
    SessionRefusal,
    Welcome,
)
from tidegate.trading_core import recovery, wal
from tidegate.trading_core.book import BookDraft
from tidegate.trading_core.disk import Disk
from tidegate.trading_core.judge import (
    add_assets,
    bind,
    judge,
    rebind,
    retire,
    set_status,
)
from tidegate.trading_core.operation_memory import VERSION_BITS
from tidegate.trading_core.reads import read
from tidegate.trading_core.recovery import RecoveredCore
from tidegate.trading_core.requests import (
    READS,
    BindingChanged,
    CoreRequest,
    RequestDeclined,
    admit,
    check,
    invalid_account,
)
from tidegate.trading_core.snapshot import CoreState
from tidegate.trading_core.wal import LogPosition, RecordKind

Reply: TypeAlias = bytes | RequestDeclined | BindingChanged


class CoreLimits(NamedTuple):
    """The limits of a core."""

    batch_operations: int = 16_384
    queue_operations: int = 65_536
    queue_bytes: int = 16 * 2**20
    queue_requests: int = 16_384
    snapshot_records: int = 1_000_000
    snapshot_bytes: int = 128 * 2**20
    marks: int = 1_000_000
    connections: int = 64
    requests_in_flight: int = 64  # Per connection. At this limit the core stops reading from it.
    horizon: Horizon = Horizon()  # Newer ids, less the clock skew, are never retired.
    hello_s: float = 5.0
    drain_s: float = 1.0


class CoreBusy(Exception):
    """The queue is full. The request was not executed."""


class CoreStopped(Exception):
    """The core no longer serves: it is shutting down, or its disk has failed."""


class Core:
    """Open it, run `run()` in a task, and submit requests. It has no sockets and no randomness."""

    def __init__(
        self, disk: Disk, recovered: RecoveredCore, limits: CoreLimits, clock: Callable[[], float]
    ) -> None:
        state = recovered.state
        self.clock = clock  # Seconds since 1970. It limits the floor.
        self.disk, self.limits, self.notes = disk, limits, recovered.notes
        self.uuid, self.epoch, self.book, self.marks = (
            state.uuid,
            state.epoch,
            state.book,
            state.marks,
        )
        self.log = recovered.log
        self._queue: deque[CoreRequest] = deque()
        self._queued_operations = self._queued_bytes = 0
        self._wake = asyncio.Event()
        self._durable = asyncio.Event()
        self._binding_changed = asyncio.Event()
        self._stopping = False
        self.stopped = asyncio.Event()  # Set once no more replies will come.

    @classmethod
    async def open(
        cls,
        disk: Disk,
        fresh_uuid: bytes,
        clock: Callable[[], float],
        limits: CoreLimits | None = None,
    ) -> "Core":
        """Lock the directory and recover. The fresh uuid is used only if the directory is empty."""
        limits = limits or CoreLimits()
        disk.lock()
        try:
            recovered = await recovery.recover(disk, fresh_uuid, limits.marks)
        except BaseException:
            disk.unlock()
            raise
        return cls(disk, recovered, limits, clock)

    @property
    def log_position(self) -> LogPosition:
        return self.log.log_position

    @property
    def mark(self) -> HistoryMark:
        return HistoryMark(UUID(bytes=self.uuid), *self.log_position, self.epoch)

    def stamp(self) -> bytes:
        return STAMP.pack(self.epoch, *self.log_position)

    def refusal_of(self, hello: Hello) -> RefusalFrame | None:
        """Why this client must not be served, or None."""
        known = hello.mark
        if hello.protocol != wire.PROTOCOL:
            return _refusal(
                SessionRefusal.PROTOCOL,
                f"this core has protocol {wire.PROTOCOL} and the client {hello.protocol}: "
                "run the same version of both",
            )
        if hello.store and (refusal := self._binding_refusal(hello)) is not None:
            return refusal
        if known is not None and known.uuid.bytes != self.uuid:
            return _refusal(
                SessionRefusal.OTHER_CORE,
                f"the client knows core {known.uuid}, but this is core {self.mark.uuid}: "
                "check that this is the right data directory",
            )
        if max(hello.epoch, known.epoch if known else 0) > self.epoch:
            return _refusal(
                SessionRefusal.STALE_EPOCH,
                f"this core is at epoch {self.epoch}, and the client has seen a later one",
            )
        return None if known is None else self._history_refusal(known)

    def _binding_refusal(self, hello: Hello) -> RefusalFrame | None:
        bound = self.book.binding
        if bound.store and bound.store != hello.store:
            return _refusal(
                SessionRefusal.OTHER_STORE,
                f"this core serves store {bound.store}, and the client belongs to store "
                f"{hello.store}: a core serves one store, so start another core for this store",
            )
        if bound.store and bound.place != hello.place:
            return _refusal(
                SessionRefusal.MOVED,
                f"store {bound.store} was in database {bound.place}, and this client uses database "
                f"{hello.place}: after a restore, once the old database is no longer in use, run "
                "`tidegate store confirm`; for a copy, run `tidegate store new-identity` on it",
            )
        return None

    async def register(self, hello: Hello) -> RefusalFrame | None:
        """Record what is new in the HELLO of a client, durably, or return why it is refused."""
        session = Binding(hello.store, hello.place)
        if session.store and not self.book.binding.store:
            await self.submit(FrameKind.BIND, wire.pack(session))
        refusal = self.refusal_of(hello)  # Again: another store may have been bound first.
        # Assets of a client without a store are ignored: only a store knows which assets exist.
        if refusal is None and session.store and not self.book.assets.issuperset(hello.assets):
            await self.submit(FrameKind.ASSETS, wire.pack_assets(hello.assets), session)
            refusal = self.refusal_of(hello)
        return refusal

    def _history_refusal(self, known: HistoryMark) -> RefusalFrame | None:
        if known.position > self.log_position.position:
            return _refusal(
                SessionRefusal.BEHIND,
                f"this core is at position {self.log_position.position}, but it has answered up to "
                f"{known.position}: its log has lost its end, or it is an old copy",
            )
        if known.position < self.marks.oldest():
            return _refusal(
                SessionRefusal.TOO_OLD,
                f"the client remembers position {known.position}, and this core can only check "
                f"positions from {self.marks.oldest()} on. Compare the books, then delete the "
                "client's mark",
            )
        if self.marks.find(known.position) != known.crc:
            return _refusal(
                SessionRefusal.FORKED,
                f"the history differs at position {known.position}: two cores have run on "
                "copies of one directory",
            )
        return None

    def welcome(self) -> Welcome:
        return Welcome(self.mark, (self.book.floor >> VERSION_BITS).to_bytes(16))

    def submit(
        self, kind: FrameKind, body: bytes, session: Binding | None = None
    ) -> asyncio.Future[bytes]:
        """Queue a request. Its reply comes once it is durable. Raises CoreBusy or CoreStopped.

        A session passes the binding from its HELLO. Then this call, or the reply, may raise
        BindingChanged or RequestDeclined.
        """
        if self._stopping:
            raise CoreStopped("the core has stopped")
        check(kind, body)
        if session is not None:
            admit(kind, session, self.book.binding)
        reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if kind in READS:
            # Memory contains only durable state, so reads need not wait.
            reply.set_result(self.stamp() + read(self.book, kind, body))
            return reply
        operations = len(body) // wire.OPERATION.size
        if (
            self._queued_operations + operations > self.limits.queue_operations
            or self._queued_bytes + len(body) > self.limits.queue_bytes
            or len(self._queue) >= self.limits.queue_requests
        ):
            raise CoreBusy
        self._queue.append(CoreRequest(kind, body, reply, session))
        self._queued_operations += operations
        self._queued_bytes += len(body)
        self._wake.set()
        return reply

    async def run(self) -> None:
        """Commit batches until stopped. A disk error ends it, and must end the process."""
        try:
            while True:
                await self._wake.wait()
                if not self._queue:
                    break
                await self._commit(self._take())
                if not self._queue and not self._stopping:
                    self._wake.clear()
                await asyncio.sleep(0)
        finally:
            self._stopping = True
            self.stopped.set()
            self._durable.set()
            for request in self._queue:
                _fail(request)
            self.log.close()

    def stop(self) -> None:
        """Accept no more requests. `run` ends once the queued ones are answered."""
        self._stopping = True
        self._wake.set()

    def _take(self) -> list[CoreRequest]:
        """Take the queued requests, as many as fit in one frame."""
        group: list[CoreRequest] = []
        operations = 0
        while self._queue:
            count = len(self._queue[0].body) // wire.OPERATION.size
            if group and operations + count > self.limits.batch_operations:
                break
            group.append(self._queue.popleft())
            operations += count
            self._queued_bytes -= len(group[-1].body)
        self._queued_operations -= operations
        return group

    async def _commit(self, group: list[CoreRequest]) -> None:
        bound = self.book.binding
        try:
            draft, payload, replies = self._judge(group)
            if payload:
                await self.log.append(draft.position - self.book.position, payload)
                self.book.apply(draft)
                self.marks.add(self.log_position)
                self._notify_durable()
            self._answer(group, replies, snapshots=False)
            if self.book.binding != bound:
                self._end_old_sessions()
            if self._snapshot_due(group):
                await self._rotate()
            self._answer(group, replies, snapshots=True)
        finally:
            for request in group:
                _fail(request)

    def _answer(self, group: list[CoreRequest], replies: list[Reply], *, snapshots: bool) -> None:
        stamp = self.stamp()
        for request, reply in zip(group, replies, strict=True):
            if not isinstance(reply, bytes):
                _fail(request, reply)
            elif snapshots == (request.kind == FrameKind.SNAPSHOT) and not request.reply.done():
                request.reply.set_result(stamp + reply)

    def _judge(self, group: list[CoreRequest]) -> tuple[BookDraft, bytes, list[Reply]]:
        draft = BookDraft(self.book)
        sections: list[bytes] = []
        replies: list[Reply] = []
        for request in group:
            before = draft.position
            try:
                section, records, reply = self._decide(draft, request)
            except (RequestDeclined, BindingChanged) as refusal:
                assert draft.position == before
                replies.append(refusal)
                continue
            if records:
                sections.append(wal.pack_section(section, draft.position - before, records))
            replies.append(reply)
        return draft, b"".join(sections), replies

    def _decide(self, draft: BookDraft, request: CoreRequest) -> tuple[RecordKind, bytes, bytes]:
        """The section and the records for the log, and the reply."""
        kind, body, _, session = request
        if session is not None:
            # Again: an earlier request of this batch may have rebound the core.
            admit(kind, session, draft.binding)
        match kind:
            case FrameKind.ASK:
                answers, records = judge(draft, body)
                return RecordKind.OPERATIONS, records, answers
            case FrameKind.SET_STATUS:
                records, invalid = set_status(draft, body)
                if invalid:
                    raise invalid_account(invalid, body[: wire.ACCOUNT.size])
                return RecordKind.STATUS, records, b""
            case FrameKind.RETIRE:
                records = retire(draft, body, self._latest_floor())
                return RecordKind.FLOOR, records, (draft.floor >> VERSION_BITS).to_bytes(16)
            case FrameKind.BIND:
                return RecordKind.BINDING, bind(draft, body), b""
            case FrameKind.REBIND:
                records = rebind(draft, body)
                return RecordKind.BINDING, records, wire.pack(draft.binding)
            case FrameKind.ASSETS:
                return RecordKind.ASSETS, add_assets(draft, body), b""
            case _:
                return RecordKind.OPERATIONS, b"", b""

    def _latest_floor(self) -> int:
        """The highest floor allowed now. Not used on replay: a recorded floor stays valid."""
        return self.limits.horizon.latest(self.clock()).int

    def _snapshot_due(self, group: list[CoreRequest]) -> bool:
        records = self.log_position.position - self.log.header.start.position
        return records > 0 and (
            records >= self.limits.snapshot_records
            or self.log.size >= self.limits.snapshot_bytes
            or any(r.kind == FrameKind.SNAPSHOT and not r.reply.done() for r in group)
        )

    async def _rotate(self) -> None:
        state = CoreState(self.uuid, self.epoch, self.log_position, self.book, self.marks)
        new_log = await recovery.begin_segment(self.disk, state)
        self.log.close()
        # Set before the snapshot: if that fails, `run` closes the new log, not the old one again.
        self.log = new_log
        await recovery.write_snapshot(self.disk, state)

    async def wait_durable(self) -> None:
        """Return when more records have become durable."""
        await self._durable.wait()
        if self.stopped.is_set():
            raise CoreStopped("the core has stopped")

    def _notify_durable(self) -> None:
        event, self._durable = self._durable, asyncio.Event()
        event.set()

    async def wait_rebound(self, session: Binding) -> None:
        """Return when the core is rebound, so that this session may no longer be served."""
        while not session.store or session == self.book.binding:
            await self._binding_changed.wait()

    def _end_old_sessions(self) -> None:
        event, self._binding_changed = self._binding_changed, asyncio.Event()
        event.set()


def _refusal(code: SessionRefusal, message: str) -> RefusalFrame:
    return RefusalFrame(code, f"{code.name}: {message}")


def _fail(request: CoreRequest, fault: Exception | None = None) -> None:
    if not request.reply.done():
        request.reply.set_exception(fault or CoreStopped("the core has stopped"))
        # Retrieved here, because asyncio warns if no caller is left to retrieve it.
        request.reply.exception()
