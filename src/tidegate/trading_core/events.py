"""The stream of applied operations, read back from the log: all of them, in order, durable."""

import asyncio
from collections.abc import AsyncIterator, Iterator

from tidegate.core.wire import EVENT, RECORD, STAMP
from tidegate.trading_core import recovery, wal
from tidegate.trading_core.core import Core, CoreStopped
from tidegate.trading_core.wal import LogPosition, RecordKind

READ_SIZE = 2**18
MAX_ROWS = 4_096  # In one message, which stays far below the limit of a frame.


class EventsGone(Exception):
    """The log does not contain the requested position, or no longer."""


async def events(core: Core, after: int) -> AsyncIterator[bytes]:
    """Yield stamped rows of EVENT after a position; wait for more until the core stops.

    A stamp without rows means that all events up to its position have been sent.
    """
    if after > core.log_position.position:
        newest = core.log_position.position
        raise EventsGone(f"position {after} does not exist yet; the log ends at {newest}")
    log_position, offset, name = _segment(core, after)
    reported = -1
    while True:
        await asyncio.sleep(0)  # A client that reads old events must not block the others.
        durable = core.log_position.position
        if log_position.position == durable:
            if reported != durable:
                reported = durable
                yield STAMP.pack(core.epoch, *log_position)
                continue
            try:
                await core.wait_durable()
            except CoreStopped:
                return
            continue
        content = _read(core, name, offset, log_position)
        bytes_read = 0
        for frame in wal.frames(content, 0, log_position):
            if frame.after.position > durable:
                break
            for rows in _rows(log_position.position, frame.payload, after):
                yield STAMP.pack(core.epoch, *frame.after) + rows
            log_position, bytes_read = frame.after, frame.end
        offset += bytes_read
        if bytes_read == 0:
            # This segment is read to its end. The next one begins at the same position.
            end = log_position
            log_position, offset, name = _segment(core, end.position)
            if log_position != end:
                raise EventsGone(f"the log at position {end.position} cannot be read")


def _segment(core: Core, position: int) -> tuple[LogPosition, int, str]:
    segments = [s for s in recovery.segments_of(core.disk.names()) if s.start <= position]
    if not segments:
        raise EventsGone(f"the log no longer reaches back to position {position}")
    name = segments[-1].name
    header = wal.read_header(name, core.disk.read(name, 0, wal.HEADER_SIZE))
    return header.start, wal.HEADER_SIZE, name


def _read(core: Core, name: str, offset: int, log_position: LogPosition) -> bytes:
    try:
        content = core.disk.read(name, offset, READ_SIZE)
        if len(content) == READ_SIZE and next(wal.frames(content, 0, log_position), None) is None:
            content = core.disk.read(name, offset, wal.MAX_FRAME)
    except FileNotFoundError:
        raise EventsGone(f"the log at position {log_position.position} has been deleted") from None
    return content


def _rows(position: int, payload: bytes, after: int) -> Iterator[bytes]:
    """The operations of one frame after position `after`, at most MAX_ROWS at a time."""
    for kind, records, body in wal.sections(payload):
        if kind is RecordKind.OPERATIONS:
            numbered = [
                EVENT.pack(position + 1 + i, body[i * RECORD.size : (i + 1) * RECORD.size])
                for i in range(max(0, after - position), records)
            ]
            for start in range(0, len(numbered), MAX_ROWS):
                yield b"".join(numbered[start : start + MAX_ROWS])
        position += records
