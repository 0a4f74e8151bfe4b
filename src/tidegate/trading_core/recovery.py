"""From a data directory to a core that may serve: read, check, replay, begin a new epoch.

The directory holds snapshots and log segments, each named by the position where it begins, and
every snapshot has a segment that begins with it. At each start the newest segment is copied
under the next epoch, because what the last run wrote may so far exist in the page cache only:
a failed fsync leaves it readable and not durable.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from tidegate.core.wire import FLOOR, STATUS, rows
from tidegate.trading_core import snapshot, wal
from tidegate.trading_core.book import Book, Draft, Inconsistent
from tidegate.trading_core.disk import Disk
from tidegate.trading_core.snapshot import Marks, State
from tidegate.trading_core.wal import RESTORE, Damaged, Header, Log, Place, Section, Tail

_SEGMENT = re.compile(wal.PREFIX + r"([0-9]{20})-([0-9]{10})")
_SNAPSHOT = re.compile(snapshot.PREFIX + r"([0-9]{20})")
KEPT_SNAPSHOTS = 2
KEPT_TORN = 8
DAMAGED, TORN = "damaged-", "torn-"


class Segment(NamedTuple):
    name: str
    start: int
    epoch: int


class Newest(NamedTuple):
    """The segment that the log goes on from, and where it ends."""

    segment: Segment
    content: bytes
    tail: Tail


class Recovered(NamedTuple):
    state: State
    log: Log
    notes: tuple[str, ...]  # What an operator should know about this start.


async def recover(disk: Disk, fresh_uuid: bytes, marks: int) -> Recovered:
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
        state = State(headers[0].uuid, 0, begin, Book(), Marks(marks, begin))
    for (segment, content), header in zip(contents, headers, strict=True):
        state = _replay_segment(state, segment.name, content, header)
    # Only the newest may end in a torn write: what follows the others vouches for their ends.
    newest = Newest(*contents[-1], wal.read_tail(contents[-1][1], headers[-1]))
    wal.judge_tail(newest.segment.name, newest.content, headers[-1], newest.tail)
    epoch = 1 + max(state.epoch, *(s.epoch for s in segments))
    log = await _continue(disk, state._replace(epoch=epoch), newest, notes)
    _prune(disk, log.header, segments)
    return Recovered(state._replace(epoch=epoch), log, tuple(notes))


def segments_of(names: list[str]) -> list[Segment]:
    """In the order of the history; of two that begin at one position, the later epoch is last."""
    found = (_SEGMENT.fullmatch(name) for name in names)
    return sorted(
        (Segment(match[0], int(match[1]), int(match[2])) for match in found if match),
        key=lambda segment: segment[1:],
    )


def snapshots_of(names: list[str]) -> list[int]:
    found = (_SNAPSHOT.fullmatch(name) for name in names)
    return sorted(int(match[1]) for match in found if match)


def replay(book: Book, payload: bytes) -> None:
    """Apply one frame of the log. It is applied wholly, as it was when it was written."""
    draft = Draft(book)
    for kind, _, body in wal.sections(payload):
        match kind:
            case Section.OPERATIONS:
                draft.replay(body)
            case Section.STATUS:
                for account, status in rows(STATUS, body):
                    draft.note_status(account, status)
            case Section.FLOOR:
                draft.note_floor(body[FLOOR.size :].decode(), int.from_bytes(body[: FLOOR.size]))
    book.apply(draft)


async def rotate(disk: Disk, log: Log, state: State) -> Log:
    """Begin a new segment, then write the snapshot that it follows, then drop what is older.

    In this order, because a snapshot without its segment could not be told from a lost log.
    """
    place = state.place
    fresh = await wal.create(disk, Header(state.uuid, state.epoch, place, place))
    log.close()
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
    return fresh


async def _begin(disk: Disk, uuid: bytes, marks: int) -> Recovered:
    begin = wal.genesis(uuid)
    log = await wal.create(disk, Header(uuid, 1, begin, begin))
    state = State(uuid, 1, begin, Book(), Marks(marks, begin))
    return Recovered(state, log, ("this is a new and empty core",))


def _newest_snapshot(
    disk: Disk, positions: list[int], marks: int, notes: list[str]
) -> State | None:
    for position in reversed(positions):
        name = snapshot.name_of(position)
        state = snapshot.parse(name, disk.read(name), marks)
        if state is not None and state.place.position == position:
            return state
        notes.append(f"{name} is damaged and was set aside; an older one is used")
        disk.rename(name, DAMAGED + name)
    return None


def _chain(segments: list[Segment], state: State | None) -> list[Segment]:
    """The segments from the snapshot on, one for each start: the one of the latest epoch."""
    start = 0 if state is None else state.place.position
    latest = {segment.start: segment for segment in segments if segment.start >= start}
    if start not in latest:
        raise Damaged(f"the log that begins at position {start} is missing. {RESTORE}")
    return list(latest.values())


def _header(segment: Segment, content: bytes) -> Header:
    header = wal.read_header(segment.name, content)
    if header.name != segment.name:
        raise Damaged(f"{segment.name} was written as {header.name}. {RESTORE}")
    return header


def _replay_segment(state: State, name: str, content: bytes, header: Header) -> State:
    if header.uuid != state.uuid or header.start != state.place:
        raise Damaged(
            f"{name} begins at position {header.start.position} of core {header.uuid.hex()}, and "
            f"what is before it reads up to {state.place.position} of {state.uuid.hex()}. {RESTORE}"
        )
    place = header.start
    for place in _apply_frames(state, content):
        state.marks.add(place)
    return state._replace(place=place)


def _apply_frames(state: State, content: bytes) -> Iterator[Place]:
    for frame in wal.frames(content, wal.HEADER_SIZE, state.place):
        try:
            replay(state.book, frame.payload)
        except Inconsistent as wrong:
            raise Damaged(f"{wrong}. {RESTORE}") from wrong
        if state.book.position != frame.after.position:
            raise Damaged(f"a frame miscounts its records at {frame.after.position}. {RESTORE}")
        yield frame.after


async def _continue(disk: Disk, state: State, newest: Newest, notes: list[str]) -> Log:
    segment, content, tail = newest
    header = wal.read_header(segment.name, content)
    if tail.cut:
        notes.append(
            f"the last {tail.cut} bytes of {segment.name}, after position "
            f"{tail.place.position}, read like a torn write and were cut; a client that knows "
            f"more will refuse this core. They are kept as {TORN}{segment.name}"
        )
        _keep_torn(disk, segment.name, content[tail.offset :])
    return await wal.create(
        disk,
        Header(state.uuid, state.epoch, header.start, state.place),
        # A view, because a log may be large and is copied once more as it is.
        memoryview(content)[wal.HEADER_SIZE : tail.offset],
    )


def _keep_torn(disk: Disk, name: str, tail: bytes) -> None:
    torn = [n for n in disk.names() if n.startswith(TORN)]
    for old in [n for n in torn if n == TORN + name] + torn[: -KEPT_TORN + 1]:
        if old in disk.names():
            disk.unlink(old)
    file = disk.create(TORN + name)
    file.append(tail)
    file.close()


def _prune(disk: Disk, header: Header, segments: list[Segment]) -> None:
    """Drop the segments that this start's copy, or a copy before it, has replaced."""
    for segment in segments:
        later = any(s.start == segment.start and s.epoch > segment.epoch for s in segments)
        if later or segment.start == header.start.position:
            disk.unlink(segment.name)
