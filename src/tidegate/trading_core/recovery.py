"""Recovery: reads a data directory, checks it, replays the log and begins a new epoch.

The directory contains snapshots and log segments, each named by the position where it begins. For
every snapshot there is a segment that begins at its position. Each start copies the newest segment
under the next epoch: what the last run wrote may exist only in the page cache, because after a
failed fsync it is readable but not durable.
"""

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from tidegate.core.wire import ASSET, FLOOR, STATUS, rows, unpack_binding
from tidegate.trading_core import snapshot, wal
from tidegate.trading_core.book import Book, BookDraft, LogInconsistent
from tidegate.trading_core.disk import Disk, File
from tidegate.trading_core.snapshot import CoreState, RecentPositions
from tidegate.trading_core.wal import (
    RESTORE,
    LogDamaged,
    LogTail,
    LogWriter,
    RecordKind,
    SegmentHeader,
)

_SEGMENT = re.compile(wal.PREFIX + r"([0-9]{20})-([0-9]{10})")
_SNAPSHOT = re.compile(snapshot.PREFIX + r"([0-9]{20})")
MAX_SNAPSHOTS = 2
MAX_TORN_TAILS = 8
DAMAGED, TORN = "damaged-", "torn-"


class LogSegment(NamedTuple):
    name: str
    start: int
    epoch: int


class NewestSegment(NamedTuple):
    """The segment that the log continues from, and where it ends."""

    segment: LogSegment
    content: bytes
    header: SegmentHeader
    tail: LogTail

    @property
    def body(self) -> memoryview:
        """A view, because a log may be large and is copied unchanged."""
        return memoryview(self.content)[wal.HEADER_SIZE : self.tail.offset]


class RecoveredCore(NamedTuple):
    state: CoreState
    log: LogWriter
    notes: tuple[str, ...]  # Messages for the operator about this start.


async def recover(disk: Disk, fresh_uuid: bytes, marks: int) -> RecoveredCore:
    """Recover the state in the directory and open a new log. The directory must be locked."""
    names = disk.names()
    for name in names:
        if name.startswith(wal.TEMPORARY):
            disk.unlink(name)  # It never got its final name, so nothing depends on it.
    segments, snapshots = segments_of(names), snapshots_of(names)
    if not segments and not snapshots:
        return await _create(disk, fresh_uuid, marks)
    notes: list[str] = []
    state = _newest_snapshot(disk, snapshots, marks, notes)
    chain = _segments_after(segments, state)
    contents = [(s, disk.read(s.name)) for s in chain]
    headers = [_header(s, content) for s, content in contents]
    if state is None:
        begin = wal.genesis(headers[0].uuid)
        state = CoreState(headers[0].uuid, 0, begin, Book(), RecentPositions(marks, begin))
    # Only the newest segment may end in a torn write: the others end where the next one begins.
    newest = NewestSegment(*contents[-1], headers[-1], wal.read_tail(contents[-1][1], headers[-1]))
    wal.check_tail(newest.segment.name, newest.content, newest.header, newest.tail)
    epoch = 1 + max(state.epoch, *(s.epoch for s in segments))
    fresh = SegmentHeader(state.uuid, epoch, newest.header.start, newest.tail.log_position)
    replayed = partial(_replay_segments, state._replace(epoch=epoch), contents, headers)
    state, file = await _replay_while_copying(disk, replayed, fresh, newest.body)
    if newest.tail.cut:
        notes.append(_keep_torn(disk, newest))
    log = await wal.publish(disk, fresh, file, wal.HEADER_SIZE + len(newest.body))
    _prune(disk, log.header, segments)
    return RecoveredCore(state, log, tuple(notes))


async def _replay_while_copying(
    disk: Disk, replayed: Callable[[], CoreState], fresh: SegmentHeader, body: memoryview
) -> tuple[CoreState, File]:
    """Replay the log while the disk writes the copy. The copy gets its name later."""
    copying = asyncio.ensure_future(wal.write(disk, fresh, body))
    await asyncio.sleep(0)  # Start the copy. From then on it only waits for the disk.
    try:
        state = replayed()
    except LogDamaged:
        with suppress(OSError):
            (await copying).close()
        if wal.TEMPORARY + fresh.name in disk.names():
            disk.unlink(wal.TEMPORARY + fresh.name)
        raise
    return state, await copying


def segments_of(names: list[str]) -> list[LogSegment]:
    """The segments, ordered by their start and then by epoch."""
    matches = (_SEGMENT.fullmatch(name) for name in names)
    return sorted(
        (LogSegment(match[0], int(match[1]), int(match[2])) for match in matches if match),
        key=lambda segment: segment[1:],
    )


def snapshots_of(names: list[str]) -> list[int]:
    matches = (_SNAPSHOT.fullmatch(name) for name in names)
    return sorted(int(match[1]) for match in matches if match)


def replay(book: Book, payload: bytes) -> None:
    """Apply one frame of the log. Its operations are not judged again."""
    for kind, _, body in wal.sections(payload):
        if kind is RecordKind.OPERATIONS:
            book.replay(body)
            continue
        draft = BookDraft(book)
        match kind:
            case RecordKind.STATUS:
                for account, status in rows(STATUS, body):
                    draft.write_status(account, status)
            case RecordKind.FLOOR if len(body) > FLOOR.size:
                floor = int.from_bytes(body[: FLOOR.size])
                draft.write_old_floor(body[FLOOR.size :].decode(), floor)
            case RecordKind.FLOOR:
                draft.write_floor(int.from_bytes(body))
            case RecordKind.BINDING:
                draft.write_binding(unpack_binding(body))
            case RecordKind.ASSETS:
                draft.write_assets(asset for (asset,) in rows(ASSET, body))
        book.apply(draft)


async def begin_segment(disk: Disk, state: CoreState) -> LogWriter:
    """Create the segment that begins at a snapshot, before the snapshot is written.

    In this order, because a snapshot without its segment looks the same as a lost log.
    """
    start = state.log_position
    return await wal.create(disk, SegmentHeader(state.uuid, state.epoch, start, start))


async def write_snapshot(disk: Disk, state: CoreState) -> None:
    """Write the snapshot of a segment that exists already, then delete older files."""
    await snapshot.write(disk, state)
    names = disk.names()
    kept = snapshots_of(names)[-MAX_SNAPSHOTS:]
    oldest = kept[0] if len(kept) == MAX_SNAPSHOTS else 0
    for position in snapshots_of(names):
        if position < oldest:
            disk.unlink(snapshot.name_of(position))
    for segment in segments_of(names):
        if segment.start < oldest:
            disk.unlink(segment.name)


async def _create(disk: Disk, uuid: bytes, marks: int) -> RecoveredCore:
    begin = wal.genesis(uuid)
    log = await wal.create(disk, SegmentHeader(uuid, 1, begin, begin))
    state = CoreState(uuid, 1, begin, Book(), RecentPositions(marks, begin))
    return RecoveredCore(state, log, ("this is a new and empty core",))


def _newest_snapshot(
    disk: Disk, positions: list[int], marks: int, notes: list[str]
) -> CoreState | None:
    for position in reversed(positions):
        name = snapshot.name_of(position)
        state = snapshot.parse(name, disk.read(name), marks)
        if state is not None and state.log_position.position == position:
            return state
        notes.append(
            f"{name} is damaged and was set aside as {DAMAGED}{name}; an older one is used"
        )
        disk.rename(name, DAMAGED + name)
    return None


def _segments_after(segments: list[LogSegment], state: CoreState | None) -> list[LogSegment]:
    """The segments from the snapshot on, one per start position: that of the latest epoch."""
    start = 0 if state is None else state.log_position.position
    latest = {segment.start: segment for segment in segments if segment.start >= start}
    if start not in latest:
        raise LogDamaged(f"the log that begins at position {start} is missing. {RESTORE}")
    return list(latest.values())


def _header(segment: LogSegment, content: bytes) -> SegmentHeader:
    header = wal.read_header(segment.name, content)
    if header.name != segment.name:
        raise LogDamaged(f"{segment.name} was written under the name {header.name}. {RESTORE}")
    return header


def _replay_segments(
    state: CoreState, contents: list[tuple[LogSegment, bytes]], headers: list[SegmentHeader]
) -> CoreState:
    for (segment, content), header in zip(contents, headers, strict=True):
        state = _replay_segment(state, segment.name, content, header)
    state.book.recount()
    return state


def _replay_segment(
    state: CoreState, name: str, content: bytes, header: SegmentHeader
) -> CoreState:
    if header.uuid != state.uuid or header.start != state.log_position:
        raise LogDamaged(
            f"{name} begins at position {header.start.position} of core {header.uuid.hex()}, but "
            f"the log before it ends at position {state.log_position.position} of core "
            f"{state.uuid.hex()}. {RESTORE}"
        )

    for frame in wal.frames(content, wal.HEADER_SIZE, header.start):
        try:
            replay(state.book, frame.payload)
        except LogInconsistent as error:
            raise LogDamaged(f"{error}. {RESTORE}") from error
        if state.book.position != frame.after.position:
            raise LogDamaged(
                f"the frame at position {frame.after.position} has a wrong record count. {RESTORE}"
            )
        state.marks.add(frame.after)
        state = state._replace(log_position=frame.after)
    return state


def _keep_torn(disk: Disk, newest: NewestSegment) -> str:
    """Save the bytes that are cut to a file, and return a message about it."""
    name, tail = newest.segment.name, newest.tail
    torn = [n for n in disk.names() if n.startswith(TORN)]
    for old in [n for n in torn if n == TORN + name] + torn[: -MAX_TORN_TAILS + 1]:
        if old in disk.names():
            disk.unlink(old)
    file = disk.create(TORN + name)
    file.append(newest.content[tail.offset :])
    file.close()
    return (
        f"the last {tail.cut} bytes of {name}, after position {tail.log_position.position}, look "
        f"like a torn write and were cut; they are kept as {TORN}{name}. If a client has seen a "
        "later position, it will refuse this core"
    )


def _prune(disk: Disk, header: SegmentHeader, segments: list[LogSegment]) -> None:
    """Delete the segments that were replaced by a copy, of this start or an earlier one."""
    for segment in segments:
        later = any(s.start == segment.start and s.epoch > segment.epoch for s in segments)
        if later or segment.start == header.start.position:
            disk.unlink(segment.name)
