"""From a data directory to a core that may serve: read, check, replay, begin a new epoch.

The directory holds snapshots and log segments, each named by the position where it begins, and
every snapshot has a segment that begins with it. At each start the newest segment is copied
under the next epoch, because what the last run wrote may so far exist in the page cache only:
a failed fsync leaves it readable and not durable.
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
KEPT_SNAPSHOTS = 2
KEPT_TORN = 8
DAMAGED, TORN = "damaged-", "torn-"


class LogSegment(NamedTuple):
    name: str
    start: int
    epoch: int


class NewestSegment(NamedTuple):
    """The segment that the log goes on from, and where it ends."""

    segment: LogSegment
    content: bytes
    header: SegmentHeader
    tail: LogTail

    @property
    def body(self) -> memoryview:
        """A view, because a log may be large and is copied once more as it is."""
        return memoryview(self.content)[wal.HEADER_SIZE : self.tail.offset]


class RecoveredCore(NamedTuple):
    state: CoreState
    log: LogWriter
    notes: tuple[str, ...]  # What an operator should know about this start.


async def recover(disk: Disk, fresh_uuid: bytes, marks: int) -> RecoveredCore:
    """The state that the directory holds, with a log to go on with. The directory is locked."""
    names = disk.names()
    for name in names:
        if name.startswith(wal.TEMPORARY):
            disk.unlink(name)  # Never got its name, so nothing depends on it.
    segments, snapshots = segments_of(names), snapshots_of(names)
    if not segments and not snapshots:
        return await _begin(disk, fresh_uuid, marks)
    notes: list[str] = []
    state = _newest_snapshot(disk, snapshots, marks, notes)
    chain = _chain(segments, state)
    contents = [(s, disk.read(s.name)) for s in chain]
    headers = [_header(s, content) for s, content in contents]
    if state is None:
        begin = wal.genesis(headers[0].uuid)
        state = CoreState(headers[0].uuid, 0, begin, Book(), RecentPositions(marks, begin))
    # Only the newest may end in a torn write: what follows the others vouches for their ends.
    newest = NewestSegment(*contents[-1], headers[-1], wal.read_tail(contents[-1][1], headers[-1]))
    wal.judge_tail(newest.segment.name, newest.content, newest.header, newest.tail)
    epoch = 1 + max(state.epoch, *(s.epoch for s in segments))
    fresh = SegmentHeader(state.uuid, epoch, newest.header.start, newest.tail.place)
    replayed = partial(_replayed, state._replace(epoch=epoch), contents, headers)
    state, file = await _replay_beside(disk, replayed, fresh, newest.body)
    if newest.tail.cut:
        notes.append(_keep_torn(disk, newest))
    log = await wal.publish(disk, fresh, file, wal.HEADER_SIZE + len(newest.body))
    _prune(disk, log.header, segments)
    return RecoveredCore(state, log, tuple(notes))


async def _replay_beside(
    disk: Disk, replayed: Callable[[], CoreState], fresh: SegmentHeader, body: memoryview
) -> tuple[CoreState, File]:
    """Replay while the disk takes the copy, which gets a name that counts only after that."""
    copying = asyncio.ensure_future(wal.write(disk, fresh, body))
    await asyncio.sleep(0)  # It begins, and then waits for the disk only.
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
    """In the order of the history; of two that begin at one position, the later epoch is last."""
    found = (_SEGMENT.fullmatch(name) for name in names)
    return sorted(
        (LogSegment(match[0], int(match[1]), int(match[2])) for match in found if match),
        key=lambda segment: segment[1:],
    )


def snapshots_of(names: list[str]) -> list[int]:
    found = (_SNAPSHOT.fullmatch(name) for name in names)
    return sorted(int(match[1]) for match in found if match)


def replay(book: Book, payload: bytes) -> None:
    """Apply one frame of the log. Nothing in it is judged again."""
    for kind, _, body in wal.sections(payload):
        if kind is RecordKind.OPERATIONS:
            book.replay(body)
            continue
        draft = BookDraft(book)
        match kind:
            case RecordKind.STATUS:
                for account, status in rows(STATUS, body):
                    draft.note_status(account, status)
            case RecordKind.FLOOR if len(body) > FLOOR.size:
                floor = int.from_bytes(body[: FLOOR.size])
                draft.note_old_floor(body[FLOOR.size :].decode(), floor)
            case RecordKind.FLOOR:
                draft.note_floor(int.from_bytes(body))
            case RecordKind.BINDING:
                draft.note_binding(unpack_binding(body))
            case RecordKind.ASSETS:
                draft.note_assets(asset for (asset,) in rows(ASSET, body))
        book.apply(draft)


async def begin_segment(disk: Disk, state: CoreState) -> LogWriter:
    """The segment that follows a snapshot yet to be written.

    In this order, because a snapshot without its segment could not be told from a lost log.
    """
    return await wal.create(disk, SegmentHeader(state.uuid, state.epoch, state.place, state.place))


async def write_snapshot(disk: Disk, state: CoreState) -> None:
    """Write the snapshot whose segment has begun, then drop what is older."""
    await snapshot.write(disk, state)
    names = disk.names()
    kept = snapshots_of(names)[-KEPT_SNAPSHOTS:]
    oldest = kept[0] if len(kept) == KEPT_SNAPSHOTS else 0
    for position in snapshots_of(names):
        if position < oldest:
            disk.unlink(snapshot.name_of(position))
    for segment in segments_of(names):
        if segment.start < oldest:
            disk.unlink(segment.name)


async def _begin(disk: Disk, uuid: bytes, marks: int) -> RecoveredCore:
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
        if state is not None and state.place.position == position:
            return state
        notes.append(f"{name} is damaged and was set aside; an older one is used")
        disk.rename(name, DAMAGED + name)
    return None


def _chain(segments: list[LogSegment], state: CoreState | None) -> list[LogSegment]:
    """The segments from the snapshot on, one for each start: the one of the latest epoch."""
    start = 0 if state is None else state.place.position
    latest = {segment.start: segment for segment in segments if segment.start >= start}
    if start not in latest:
        raise LogDamaged(f"the log that begins at position {start} is missing. {RESTORE}")
    return list(latest.values())


def _header(segment: LogSegment, content: bytes) -> SegmentHeader:
    header = wal.read_header(segment.name, content)
    if header.name != segment.name:
        raise LogDamaged(f"{segment.name} was written as {header.name}. {RESTORE}")
    return header


def _replayed(
    state: CoreState, contents: list[tuple[LogSegment, bytes]], headers: list[SegmentHeader]
) -> CoreState:
    for (segment, content), header in zip(contents, headers, strict=True):
        state = _replay_segment(state, segment.name, content, header)
    state.book.recount()
    return state


def _replay_segment(
    state: CoreState, name: str, content: bytes, header: SegmentHeader
) -> CoreState:
    if header.uuid != state.uuid or header.start != state.place:
        raise LogDamaged(
            f"{name} begins at position {header.start.position} of core {header.uuid.hex()}, and "
            f"what is before it reads up to {state.place.position} of {state.uuid.hex()}. {RESTORE}"
        )

    for frame in wal.frames(content, wal.HEADER_SIZE, header.start):
        try:
            replay(state.book, frame.payload)
        except LogInconsistent as wrong:
            raise LogDamaged(f"{wrong}. {RESTORE}") from wrong
        if state.book.position != frame.after.position:
            raise LogDamaged(f"a frame miscounts its records at {frame.after.position}. {RESTORE}")
        state.marks.add(frame.after)
        state = state._replace(place=frame.after)
    return state


def _keep_torn(disk: Disk, newest: NewestSegment) -> str:
    """Set aside what is cut, and say so."""
    name, tail = newest.segment.name, newest.tail
    torn = [n for n in disk.names() if n.startswith(TORN)]
    for old in [n for n in torn if n == TORN + name] + torn[: -KEPT_TORN + 1]:
        if old in disk.names():
            disk.unlink(old)
    file = disk.create(TORN + name)
    file.append(newest.content[tail.offset :])
    file.close()
    return (
        f"the last {tail.cut} bytes of {name}, after position {tail.place.position}, read like a "
        f"torn write and were cut; a client that knows more will refuse this core. They are kept "
        f"as {TORN}{name}"
    )


def _prune(disk: Disk, header: SegmentHeader, segments: list[LogSegment]) -> None:
    """Drop the segments that this start's copy, or a copy before it, has replaced."""
    for segment in segments:
        later = any(s.start == segment.start and s.epoch > segment.epoch for s in segments)
        if later or segment.start == header.start.position:
            disk.unlink(segment.name)
