"""The core: judge, append, sync, apply, answer; one batch at a time.

Whatever arrives while a batch is being made durable is the next batch. Nothing is changed in
memory and nobody is answered, not even a duplicate, before the disk has it.
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
    """Every bound of a core."""

    batch_operations: int = 16_384
    queue_operations: int = 65_536
    queue_bytes: int = 16 * 2**20
    queue_requests: int = 16_384
    snapshot_records: int = 1_000_000
    snapshot_bytes: int = 128 * 2**20
    marks: int = 1_000_000
    connections: int = 64
    requests_in_flight: int = 64  # Of one connection: then it is no longer read.
    horizon: Horizon = Horizon()  # What is younger than this, less the skew, is never retired.
    hello_s: float = 5.0
    farewell_s: float = 1.0


class CoreBusy(Exception):
    """The queue is full. Definitely not executed."""


class CoreStopped(Exception):
    """The core no longer serves: it is shutting down, or its disk has failed."""


class Core:
    """Open it, run `run()` in a task, and submit. No sockets here and no dice."""

    def __init__(
        self, disk: Disk, recovered: RecoveredCore, limits: CoreLimits, clock: Callable[[], float]
    ) -> None:
        state = recovered.state
        self.clock = clock  # The time of day. No floor is taken that is later than long ago.
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
        self._advanced = asyncio.Event()
        self._binding_changed = asyncio.Event()
        self._stopping = False
        self.stopped = asyncio.Event()  # No more answers will come.

    @classmethod
    async def open(
        cls,
        disk: Disk,
        fresh_uuid: bytes,
        clock: Callable[[], float],
        limits: CoreLimits | None = None,
    ) -> "Core":
        """Take the directory and recover. A fresh uuid is used only if it is empty."""
        limits = limits or CoreLimits()
        disk.lock()
        try:
            recovered = await recovery.recover(disk, fresh_uuid, limits.marks)
        except BaseException:
            disk.unlock()
            raise
        return cls(disk, recovered, limits, clock)

    @property
    def place(self) -> LogPosition:
        return self.log.place

    @property
    def mark(self) -> HistoryMark:
        return HistoryMark(UUID(bytes=self.uuid), *self.place, self.epoch)

    def stamp(self) -> bytes:
        return STAMP.pack(self.epoch, *self.place)

    def refuses(self, hello: Hello) -> RefusalFrame | None:
        """Why this client must not be served, if so: one of us has lost something."""
        known = hello.mark
        if hello.protocol != wire.PROTOCOL:
            return _no(
                SessionRefusal.PROTOCOL,
                f"this core speaks protocol {wire.PROTOCOL} and the client {hello.protocol}: "
                "run the same version of both",
            )
        if hello.store and (refusal := self._serves_another(hello)) is not None:
            return refusal
        if known is not None and known.uuid.bytes != self.uuid:
            return _no(
                SessionRefusal.OTHER_CORE,
                f"the client knows core {known.uuid}, and this is {self.mark.uuid}: "
                "is this the right data directory?",
            )
        if max(hello.epoch, known.epoch if known else 0) > self.epoch:
            return _no(
                SessionRefusal.STALE_EPOCH, f"a later start than epoch {self.epoch} was seen"
            )
        return None if known is None else self._disowns(known)

    def _serves_another(self, hello: Hello) -> RefusalFrame | None:
        bound = self.book.binding
        if bound.store and bound.store != hello.store:
            return _no(
                SessionRefusal.OTHER_STORE,
                f"this core serves store {bound.store}, and the client is of store "
                f"{hello.store}: a core serves one store, so give this one a core of its own",
            )
        if bound.store and bound.place != hello.place:
            return _no(
                SessionRefusal.MOVED,
                f"store {bound.store} was in database {bound.place}, and this client is of "
                f"{hello.place}: after a restore, when the old database is gone, run "
                "`tidegate store confirm`; for a copy, run `tidegate store new-identity` on it",
            )
        return None

    async def meet(self, hello: Hello) -> RefusalFrame | None:
        """Be told by a client that may be served what is new. All of it is durable afterwards."""
        session = Binding(hello.store, hello.place)
        if session.store and not self.book.binding.store:
            await self.submit(FrameKind.BIND, wire.pack(session))
        refusal = self.refuses(hello)  # Once more: another store may have been first.
        # An administrator's list of assets is not taken: only a store knows which exist.
        if refusal is None and session.store and not self.book.assets.issuperset(hello.assets):
            await self.submit(FrameKind.ASSETS, wire.pack_assets(hello.assets), session)
            refusal = self.refuses(hello)
        return refusal

    def _disowns(self, known: HistoryMark) -> RefusalFrame | None:
        if known.position > self.place.position:
            return _no(
                SessionRefusal.BEHIND,
                f"this core is at position {self.place.position} and has answered "
                f"{known.position}: its log has lost its end, or it is an old copy",
            )
        if known.position < self.marks.oldest():
            return _no(
                SessionRefusal.TOO_OLD,
                f"the client remembers position {known.position}; this core can vouch from "
                f"{self.marks.oldest()} on. Compare the books, then forget the client's mark",
            )
        if self.marks.find(known.position) != known.crc:
            return _no(
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
        """Queue a request; its reply comes when it is durable. Raises Busy or Stopped.

        A session passes what it greeted with. Then this or the reply may raise Rebound or Declined.
        """
        if self._stopping:
            raise CoreStopped("the core has stopped")
        check(kind, body)
        if session is not None:
            admit(kind, session, self.book.binding)
        reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if kind in READS:
            # Memory holds only what is durable, so that a read need not wait.
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
        """Commit until stopped. Any error of the disk ends it, and must end the process."""
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
            self._advanced.set()
            for request in self._queue:
                _fail(request)
            self.log.close()

    def stop(self) -> None:
        """Take nothing more; `run` ends when what is queued is answered."""
        self._stopping = True
        self._wake.set()

    def _take(self) -> list[CoreRequest]:
        """Everything that is queued, as far as it fits in one frame."""
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
                self.marks.add(self.place)
                self._next_advance()
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
            except (RequestDeclined, BindingChanged) as refused:
                assert draft.position == before
                replies.append(refused)
                continue
            if records:
                sections.append(wal.pack_section(section, draft.position - before, records))
            replies.append(reply)
        return draft, b"".join(sections), replies

    def _decide(self, draft: BookDraft, request: CoreRequest) -> tuple[RecordKind, bytes, bytes]:
        """The section and the records for the log, and the reply."""
        kind, body, _, session = request
        if session is not None:
            # Once more: a request before this one may have bound the core anew.
            admit(kind, session, draft.binding)
        match kind:
            case FrameKind.ASK:
                answers, records = judge(draft, body)
                return RecordKind.OPERATIONS, records, answers
            case FrameKind.SET_STATUS:
                records, strange = set_status(draft, body)
                if strange:
                    raise invalid_account(strange, body[: wire.ACCOUNT.size])
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
        """Asked when a floor comes, and never on replay: what was taken once stays."""
        return self.limits.horizon.latest(self.clock()).int

    def _snapshot_due(self, group: list[CoreRequest]) -> bool:
        fresh = self.place.position - self.log.header.start.position
        return fresh > 0 and (
            fresh >= self.limits.snapshot_records
            or self.log.size >= self.limits.snapshot_bytes
            or any(r.kind == FrameKind.SNAPSHOT and not r.reply.done() for r in group)
        )

    async def _rotate(self) -> None:
        state = CoreState(self.uuid, self.epoch, self.place, self.book, self.marks)
        fresh = await recovery.begin_segment(self.disk, state)
        self.log.close()
        # Set before the snapshot: if that fails, `run` closes this log, not the old one again.
        self.log = fresh
        await recovery.write_snapshot(self.disk, state)

    async def advance(self) -> None:
        """Return when something more has become durable."""
        await self._advanced.wait()
        if self.stopped.is_set():
            raise CoreStopped("the core has stopped")

    def _next_advance(self) -> None:
        advanced, self._advanced = self._advanced, asyncio.Event()
        advanced.set()

    async def rebound(self, session: Binding) -> None:
        """Return when a session that greeted so may no longer be served."""
        while not session.store or session == self.book.binding:
            await self._binding_changed.wait()

    def _end_old_sessions(self) -> None:
        changed, self._binding_changed = self._binding_changed, asyncio.Event()
        changed.set()


def _no(code: SessionRefusal, message: str) -> RefusalFrame:
    return RefusalFrame(code, f"{code.name}: {message}")


def _fail(request: CoreRequest, fault: Exception | None = None) -> None:
    if not request.reply.done():
        request.reply.set_exception(fault or CoreStopped("the core has stopped"))
        # Looked at here, because nobody else may be left to do so.
        request.reply.exception()
