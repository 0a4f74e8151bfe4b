"""The log: frames chained by CRC, one per batch, in segments that begin at a snapshot.

A frame carries the position before it, a CRC chained over all frames before it, and a CRC of
its own head, by which a frame can be recognised even behind damage. At most one frame is ever
on its way to the disk. So a tail that does not read is a torn write only if it is no longer
than one frame and holds no other; it is cut then, unless the segment's header vouches for it.
Everything else is damage, and nothing is served.
"""

import struct
import zlib
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from tidegate.trading_core.disk import Disk, File

FORMAT = 2
READABLE = (1, 2)  # 1: floors of several stores, and no binding to one.
MAX_PAYLOAD = 8 * 2**20

HEADER = struct.Struct(">8sH16sQQIQI")  # Then its CRC.
FRAME = struct.Struct(">4sIQII")  # Mark, length, position before, records, chain; then its CRC.
SECTION = struct.Struct(">BII")  # Kind, records, length.
CRC = struct.Struct(">I")
HEADER_SIZE = HEADER.size + CRC.size
FRAME_SIZE = FRAME.size + CRC.size
MAX_FRAME = FRAME_SIZE + MAX_PAYLOAD
SEGMENT_MAGIC = b"TIDEGATE"
FRAME_MAGIC = b"\xf5tg\xfa"
TEMPORARY = "tmp-"
PREFIX = "log-"


class RecordKind(IntEnum):
    """The kinds of record. A log with another kind is a later program's."""

    OPERATIONS = 1
    STATUS = 2
    FLOOR = 3
    BINDING = 4
    ASSETS = 5


class LogDamaged(Exception):
    """The data directory is not what an orderly stop, a crash or a loss of power leaves."""


class LogPosition(NamedTuple):
    """A position, and the chain CRC that identifies the history up to it."""

    position: int
    crc: int


class SegmentHeader(NamedTuple):
    uuid: bytes
    epoch: int
    start: LogPosition
    vouched: LogPosition  # Durable when this file got its name: a cut below it is refused.

    @property
    def name(self) -> str:
        return f"{PREFIX}{self.start.position:020d}-{self.epoch:010d}"


class LogFrame(NamedTuple):
    after: LogPosition
    payload: bytes
    end: int  # Offset behind it.


class LogTail(NamedTuple):
    """Where reading a segment stopped."""

    place: LogPosition
    offset: int
    cut: int  # Bytes of a torn write behind it.


def genesis(uuid: bytes) -> LogPosition:
    return LogPosition(0, zlib.crc32(uuid))


def pack_header(header: SegmentHeader) -> bytes:
    raw = HEADER.pack(
        SEGMENT_MAGIC, FORMAT, header.uuid, header.epoch, *header.start, *header.vouched
    )
    return raw + CRC.pack(zlib.crc32(raw))


def read_header(name: str, content: bytes) -> SegmentHeader:
    raw = content[: HEADER.size]
    if len(content) < HEADER_SIZE or raw[:8] != SEGMENT_MAGIC:
        raise LogDamaged(f"{name} does not begin with a header. {RESTORE}")
    if zlib.crc32(raw) != CRC.unpack_from(content, HEADER.size)[0]:
        raise LogDamaged(f"the header of {name} is damaged. {RESTORE}")
    _, version, uuid, epoch, position, crc, vouched, vouched_crc = HEADER.unpack(raw)
    if version not in READABLE:
        raise LogDamaged(f"{name} has format {version}; this program reads {FORMAT}. {UPGRADE}")
    return SegmentHeader(uuid, epoch, LogPosition(position, crc), LogPosition(vouched, vouched_crc))


RESTORE = (
    "Do not delete anything: restore the data directory from a copy taken while the core was "
    "stopped, or ask for help; a core that has lost answers is refused by its clients."
)
UPGRADE = "Start the program that wrote it, or a later one."


def pack_frame(before: LogPosition, records: int, payload: bytes) -> tuple[bytes, LogPosition]:
    assert len(payload) <= MAX_PAYLOAD, f"a batch of {len(payload)} bytes is too long"
    crc = _chain(before, records, payload)
    head = FRAME.pack(FRAME_MAGIC, len(payload), before.position, records, crc)
    after = LogPosition(before.position + records, crc)
    return b"".join((head, CRC.pack(zlib.crc32(head)), payload)), after


def frames(content: bytes, offset: int, place: LogPosition) -> Iterator[LogFrame]:
    """The frames that follow `place` without a gap. It ends where one does not read."""
    while (frame := _frame_at(content, offset, place)) is not None:
        yield frame
        place, offset = frame.after, frame.end


def judge_tail(name: str, content: bytes, header: SegmentHeader, tail: LogTail) -> None:
    """Raise unless the end of this segment is one that a crash can leave."""
    place, offset, cut = tail
    if place.position < header.vouched.position:
        raise LogDamaged(
            f"{name} is damaged at byte {offset}: it reads up to position {place.position}, and "
            f"{header.vouched.position} was durable. {RESTORE}"
        )
    if cut > MAX_FRAME or _strays(content, tail) or _holds_frame(content, offset + 1):
        raise LogDamaged(
            f"{name} is damaged at byte {offset}, position {place.position}, and goes on behind "
            f"that. {RESTORE}"
        )


def read_tail(content: bytes, header: SegmentHeader) -> LogTail:
    """Walk a segment to its end, whatever its records say."""
    place, offset = header.start, HEADER_SIZE
    for frame in frames(content, offset, place):
        place, offset = frame.after, frame.end
    return LogTail(place, offset, len(content) - offset)


def sections(payload: bytes) -> Iterator[tuple[RecordKind, int, bytes]]:
    """The sections of a frame whose CRC is right: what is wrong here is not the disk's doing."""
    offset = 0
    while offset < len(payload):
        kind, records, length = SECTION.unpack_from(payload, offset)
        offset += SECTION.size
        if kind not in tuple(RecordKind):
            raise LogDamaged(f"the log has records of kind {kind}, unknown here. {UPGRADE}")
        yield RecordKind(kind), records, payload[offset : offset + length]
        offset += length


def pack_section(kind: RecordKind, records: int, body: bytes) -> bytes:
    return SECTION.pack(kind, records, len(body)) + body


class LogWriter:
    """The segment that is written to. One batch at a time: append, sync, then go on."""

    def __init__(self, disk: Disk, header: SegmentHeader, file: File, size: int) -> None:
        self.header = header
        self.place = header.vouched
        self.size = size
        self._disk = disk
        self._file = file

    async def append(self, records: int, payload: bytes) -> LogPosition:
        """Write one frame and return once it is durable. If this raises, stop."""
        frame, after = pack_frame(self.place, records, payload)
        self._file.append(frame)
        await self._file.fdatasync()
        self.place = after
        self.size += len(frame)
        return after

    def close(self) -> None:
        self._file.close()


async def create(disk: Disk, header: SegmentHeader) -> LogWriter:
    """A new segment under its final name, and durable."""
    return await publish(disk, header, await write(disk, header), HEADER_SIZE)


async def write(disk: Disk, header: SegmentHeader, body: memoryview | None = None) -> File:
    """A segment that is durable with all of its body, and has no name yet that counts."""
    file = disk.create(TEMPORARY + header.name)
    file.append(pack_header(header))
    if body:
        await file.extend(body)
    await file.fdatasync()
    return file


async def publish(disk: Disk, header: SegmentHeader, file: File, size: int) -> LogWriter:
    """Give a segment that was written its name."""
    disk.rename(TEMPORARY + header.name, header.name)
    await disk.fsync_dir()
    return LogWriter(disk, header, file, size)


def _chain(before: LogPosition, records: int, payload: bytes) -> int:
    head = FRAME.pack(FRAME_MAGIC, len(payload), before.position, records, before.crc)
    return zlib.crc32(payload, zlib.crc32(head))


def _frame_at(content: bytes, offset: int, place: LogPosition) -> LogFrame | None:
    if not _head_reads(content, offset):
        return None
    _, length, position, records, crc = FRAME.unpack_from(content, offset)
    start = offset + FRAME_SIZE
    if length > MAX_PAYLOAD or start + length > len(content) or position != place.position:
        return None
    payload = content[start : start + length]
    if _chain(place, records, payload) != crc:
        return None
    return LogFrame(LogPosition(position + records, crc), payload, start + length)


def _head_reads(content: bytes, offset: int) -> bool:
    end = offset + FRAME.size
    return (
        len(content) >= end + CRC.size
        and content.startswith(FRAME_MAGIC, offset)
        and zlib.crc32(content[offset:end]) == CRC.unpack_from(content, end)[0]
    )


def _strays(content: bytes, tail: LogTail) -> bool:
    """Whether a sound head stands here that belongs somewhere else: no torn write is that."""
    return _head_reads(content, tail.offset) and (
        FRAME.unpack_from(content, tail.offset)[2] != tail.place.position
    )


def _holds_frame(content: bytes, offset: int) -> bool:
    """Whether the head of a frame stands anywhere from here on."""
    while (offset := content.find(FRAME_MAGIC, offset)) >= 0:
        if _head_reads(content, offset):
            return True
        offset += 1
    return False
