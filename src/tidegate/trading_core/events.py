"""What has been applied, read back from the log: every operation, in order, durable."""

import asyncio
from collections.abc import AsyncIterator, Iterator

from tidegate.core.wire import EVENT, RECORD, STAMP
from tidegate.trading_core import recovery, wal
from tidegate.trading_core.core import Core, CoreStopped
from tidegate.trading_core.wal import LogPosition, RecordKind

READ = 2**18
ROWS = 4_096  # In one piece: well within a frame of the wire.


class EventsGone(Exception):
    """The log does not reach to the position asked for."""


async def events(core: Core, after: int) -> AsyncIterator[bytes]:
    """Stamped rows of EVENT after a position. It waits for more until the core stops.

    A stamp without rows says that all up to its position has been sent.
    """
    if after > core.place.position:
        raise EventsGone(f"position {after} does not exist yet; this is {core.place.position}")
    place, offset, name = _segment(core, after)
    told = -1
    while True:
        await asyncio.sleep(0)  # Whoever follows from afar must not hold up the others.
        durable = core.place.position
        if place.position == durable:
            if told != durable:
                told = durable
                yield STAMP.pack(core.epoch, *place)
                continue
            try:
                await core.advance()
            except CoreStopped:
                return
            continue
        content = _read(core, name, offset, place)
        read = 0
        for frame in wal.frames(content, 0, place):
            if frame.after.position > durable:
                break
            for rows in _rows(place.position, frame.payload, after):
                yield STAMP.pack(core.epoch, *frame.after) + rows
            place, read = frame.after, frame.end
        offset += read
        if read == 0:
            # This segment is at its end: the next begins where it ends.
            at = place
            place, offset, name = _segment(core, at.position)
            if place != at:
                raise EventsGone(f"the log at position {at.position} does not read")


def _segment(core: Core, position: int) -> tuple[LogPosition, int, str]:
    found = [s for s in recovery.segments_of(core.disk.names()) if s.start <= position]
    if not found:
        raise EventsGone(f"the log no longer reaches back to position {position}")
    name = found[-1].name
    header = wal.read_header(name, core.disk.read(name, 0, wal.HEADER_SIZE))
    return header.start, wal.HEADER_SIZE, name


def _read(core: Core, name: str, offset: int, place: LogPosition) -> bytes:
    try:
        content = core.disk.read(name, offset, READ)
        if len(content) == READ and next(wal.frames(content, 0, place), None) is None:
            content = core.disk.read(name, offset, wal.MAX_FRAME)
    except FileNotFoundError:
        raise EventsGone(f"the log at position {place.position} is gone by now") from None
    return content


def _rows(position: int, payload: bytes, after: int) -> Iterator[bytes]:
    """The operations of one frame behind `after`, in pieces."""
    for kind, records, body in wal.sections(payload):
        if kind is RecordKind.OPERATIONS:
            numbered = [
                EVENT.pack(position + 1 + i, body[i * RECORD.size : (i + 1) * RECORD.size])
                for i in range(max(0, after - position), records)
            ]
            for start in range(0, len(numbered), ROWS):
                yield b"".join(numbered[start : start + ROWS])
        position += records
