"""Bugs of the trading core, of its disk, and of the client that talks to it."""

import asyncio
import errno
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from tidegate.core import wire
from tidegate.core.answers import Answer, Rejected
from tidegate.core.transfer import Question
from tidegate.core.wire import Binding, CoreOutcome, FrameKind, HistoryMark
from tidegate.systems.trading import TradingCoreClient
from tidegate.systems.trading import client as trading
from tidegate.trading_core import core as cores
from tidegate.trading_core import judge, recovery, snapshot, wal
from tidegate.trading_core.book import Book, BookDraft
from tidegate.trading_core.core import Core, Reply
from tidegate.trading_core.disk import Disk, File
from tidegate.trading_core.operation_memory import Memory, answer_of
from tidegate.trading_core.requests import CoreRequest
from tidegate.trading_core.snapshot import CoreState
from tidegate.trading_core.wal import LogFrame, LogPosition, LogWriter, SegmentHeader

MEMORY = 12  # Operations that a forgetful core remembers.

Patch = pytest.MonkeyPatch


# The client.


def busy_is_a_no(patch: Patch) -> None:
    """The answer BUSY of the core is treated as a rejection."""
    unpatched = trading._answer

    def answer(outcome: int, position: int) -> Answer:
        return Rejected("BUSY") if outcome == CoreOutcome.BUSY else unpatched(outcome, position)

    patch.setattr(trading, "_answer", answer)


def key_without_version(patch: Patch) -> None:
    """The operation key is the transfer's id, so that a refund is taken for its debit."""
    unpatched = trading._packed

    def packed(question: Question) -> bytes | None:
        return unpatched(replace(question, version=0))

    patch.setattr(trading, "_packed", packed)


def answers_shifted(patch: Patch) -> None:
    """The answers of a batch are matched to the wrong questions, shifted by one index."""
    unpatched = TradingCoreClient._answers

    def answers(
        self: TradingCoreClient, found: wire.CoreFrame, count: int
    ) -> Sequence[tuple[int, int]]:
        first, *others = unpatched(self, found, count)
        return [*others, first]

    patch.setattr(TradingCoreClient, "_answers", answers)


def takes_an_empty_core(patch: Patch) -> None:
    """The known position of the core is not checked: a core with an empty directory is accepted."""
    patch.setattr(trading, "newest", lambda _: None)


def takes_an_old_copy(patch: Patch) -> None:
    """Only the uuid of the core is compared, and not its position."""
    unpatched = trading.newest

    def newest(marks: Iterator[HistoryMark]) -> HistoryMark | None:
        mark = unpatched(marks)
        return None if mark is None else replace(mark, position=0)

    patch.setattr(trading, "newest", newest)
    patch.setattr(Core, "_history_refusal", lambda _, __: None)


# The core.


def core_forgets_refusals(patch: Patch) -> None:
    """Only Done answers are stored: a late duplicate of a refused debit takes the money."""
    patch.setattr(judge, "STORED", CoreOutcome.INVALID_AMOUNT)


def core_forgets_by_count(patch: Patch) -> None:
    """The memory of operations has a fixed size: older operations are executed again."""
    unpatched = Book.apply

    def apply(self: Book, draft: BookDraft) -> None:
        unpatched(self, draft)
        for key in list(self.memory)[:-MEMORY]:
            del self.memory[key]

    patch.setattr(Book, "apply", apply)


def answers_before_the_sync(patch: Patch) -> None:
    """The core answers when the frame is in the page cache, before the sync."""

    async def append(self: LogWriter, records: int, payload: bytes) -> LogPosition:
        frame, self.log_position = wal.pack_frame(self.log_position, records, payload)
        self._file.append(frame)
        self.size += len(frame)
        return self.log_position

    patch.setattr(LogWriter, "append", append)


def answers_duplicates_before_the_sync(patch: Patch) -> None:
    """A duplicate of a question that is still being synced is answered at once."""
    drafts: dict[Core, BookDraft] = {}
    unpatched_judge, unpatched_submit = Core._judge, Core.submit

    def judged(self: Core, group: list[CoreRequest]) -> tuple[BookDraft, bytes, list[Reply]]:
        found = unpatched_judge(self, group)
        drafts[self] = found[0]
        return found

    def submit(
        self: Core, kind: FrameKind, body: bytes, session: Binding | None = None
    ) -> asyncio.Future[bytes]:
        draft = drafts.get(self)
        if kind == FrameKind.ASK and draft is not None:
            keys = [row[0] for row in wire.rows(wire.OPERATION, body)]
            if all(key in draft.memory for key in keys):
                reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
                reply.set_result(self.stamp() + judge.judge(draft, body)[0])
                return reply
        return unpatched_submit(self, kind, body, session)

    patch.setattr(Core, "_judge", judged)
    patch.setattr(Core, "submit", submit)


def remembers_before_the_log(patch: Patch) -> None:
    """Memory is changed before the log. On a full disk, memory contains what the log does not."""

    async def commit(self: Core, group: list[CoreRequest]) -> None:
        draft, payload, replies = self._judge(group)
        records = draft.position - self.book.position
        self.book.apply(draft)
        try:
            if payload:
                await self.log.append(records, payload)
                self.marks.add(self.log_position)
            self._answer(group, replies, snapshots=False)
        except OSError as fault:
            if fault.errno != errno.ENOSPC:
                raise
        finally:
            for request in group:
                cores._fail(request)

    patch.setattr(Core, "_commit", commit)


def syncs_once_more(patch: Patch) -> None:
    """A failed fsync is retried. The retry succeeds although nothing was written."""

    async def append(self: LogWriter, records: int, payload: bytes) -> LogPosition:
        frame, after = wal.pack_frame(self.log_position, records, payload)
        self._file.append(frame)
        try:
            await self._file.fdatasync()
        except OSError:
            await self._file.fdatasync()
        self.log_position = after
        self.size += len(frame)
        return after

    patch.setattr(LogWriter, "append", append)


def judges_while_it_syncs(patch: Patch) -> None:
    """A batch is judged by a state without the batch that is being synced."""

    async def run(self: Core) -> None:
        begun: set[asyncio.Task[Any]] = set()
        try:
            while True:
                waking = asyncio.ensure_future(self._wake.wait())
                done, _ = await asyncio.wait({waking, *begun}, return_when="FIRST_COMPLETED")
                for task in done & begun:
                    task.result()
                begun -= done
                if self._queue:
                    begun.add(asyncio.ensure_future(self._commit(self._take())))
                if not self._queue:
                    self._wake.clear()
                waking.cancel()
        finally:
            self._stopping = True
            self.stopped.set()

    patch.setattr(Core, "run", run)


def core_batch_sees_no_key_before_it(patch: Patch) -> None:
    """A question that is twice in one batch is executed twice."""
    unpatched = BookDraft.__init__

    class Blind(Memory):
        """Entries are found only when they are in the book."""

        def get(self, _: bytes, __: object = None) -> None:  # type: ignore[override]
            return None

    def begin(self: BookDraft, book: Book) -> None:
        unpatched(self, book)
        self.memory = Blind()

    patch.setattr(BookDraft, "__init__", begin)


def core_takes_a_reused_key(patch: Patch) -> None:
    """A known key with another amount gets the known answer."""

    def repeat(_: BookDraft, stored: int, __: object) -> tuple[int, int]:
        return answer_of(stored)

    patch.setattr(judge, "_repeat", repeat)


def core_refuses_refunds_of_the_frozen(patch: Patch) -> None:
    """A refund to a frozen account is refused, so that the money stays in flight."""
    unpatched = judge.refund

    def refund(
        draft: BookDraft, original: bytes, account: bytes, amount: int, expect_done: int
    ) -> tuple[int, int]:
        if draft.status(account) in (judge.FROZEN, judge.DISABLED):
            return CoreOutcome.ACCOUNT_FROZEN, 0
        return unpatched(draft, original, account, amount, expect_done)

    patch.setattr(judge, "refund", refund)


def core_undoes_twice(patch: Patch) -> None:
    """A second refund of the same debit pays again."""
    patch.setattr(judge, "UNDONE_BIT", 0)


def core_undo_without_tombstone(patch: Patch) -> None:
    """A refund before its debit leaves no tombstone, so that the late debit takes the money."""
    patch.setattr(judge, "TOMBSTONE", judge.EMPTY)


# Its disk.


def torn_tail_stays(patch: Patch) -> None:
    """After a crash the log continues after a torn frame, where it cannot be read."""

    patch.setattr(
        recovery.NewestSegment,
        "body",
        property(lambda newest: memoryview(newest.content)[wal.HEADER_SIZE :]),
    )


def damage_is_skipped(patch: Patch) -> None:
    """A damaged frame is skipped, and its operations with it."""

    def frames(content: bytes, offset: int, place: LogPosition) -> Iterator[LogFrame]:
        while 0 <= offset < len(content):
            frame = wal._frame_at(content, offset, place)
            if frame is None and wal._is_valid_head(content, offset):
                _, length, position, records, crc = wal.FRAME.unpack_from(content, offset)
                start = offset + wal.FRAME_SIZE
                payload = content[start : start + length]
                if len(payload) == length:
                    frame = LogFrame(LogPosition(position + records, crc), payload, start + length)
            if frame is None:
                offset = content.find(wal.FRAME_MAGIC, offset + 1)
                continue
            yield frame
            place, offset = frame.after, frame.end

    patch.setattr(wal, "frames", frames)


def snapshot_is_not_synced(patch: Patch) -> None:
    """A snapshot is renamed before its content is synced, and the older log is deleted."""

    async def write(disk: Disk, state: CoreState) -> None:
        name, crc = snapshot.name_of(state.log_position.position), 0
        file = disk.create(wal.TEMPORARY + name)
        for chunk in snapshot.chunks(state):
            file.append(chunk)
            crc = zlib.crc32(chunk, crc)
        file.append(wal.CRC.pack(crc))
        file.close()
        disk.rename(wal.TEMPORARY + name, name)
        await disk.fsync_dir()

    patch.setattr(snapshot, "write", write)


def snapshot_without_its_memory(patch: Patch) -> None:
    """A snapshot contains the balances but not the memory of operations."""
    unpatched = snapshot.parse

    def parse(name: str, content: bytes, limit: int) -> CoreState | None:
        state = unpatched(name, content, limit)
        if state is not None:
            state.book.memory.clear()
        return state

    patch.setattr(snapshot, "parse", parse)


def old_log_goes_too_soon(patch: Patch) -> None:
    """The old log is deleted before the snapshot that replaces it is durable."""
    unpatched = snapshot.write

    async def write(disk: Disk, state: CoreState) -> None:
        for segment in recovery.segments_of(disk.names()):
            if segment.start < state.log_position.position:
                disk.unlink(segment.name)
        await unpatched(disk, state)

    patch.setattr(snapshot, "write", write)


def new_log_without_its_name(patch: Patch) -> None:
    """A new segment is synced, but its directory entry is not."""

    async def publish(disk: Disk, header: SegmentHeader, file: File, size: int) -> LogWriter:
        disk.rename(wal.TEMPORARY + header.name, header.name)
        return LogWriter(disk, header, file, size)

    patch.setattr(wal, "publish", publish)
