"""The log: frames chained by CRC, one per batch, in segments that begin at a snapshot.

A frame contains the position before it, a CRC chained over all frames before it, and a CRC of its
own head. By the CRC of the head a frame can be found even after damaged bytes. At most one frame is
being written at any time. So an unreadable tail is a torn write only if it is not longer than one
frame and contains no other frame. A torn write is cut, unless the header of the segment records a
later position as durable. Everything else is damage, and the core does not serve.
"""

import struct
import zlib
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from tidegate.trading_core.disk import Disk, File

FORMAT = 2
READABLE = (1, 2)  # Format 1 has floors of several stores and no binding.
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
    """The kinds of record. Another kind was written by a later version."""

    OPERATIONS = 1
    STATUS = 2
    FLOOR = 3
    BINDING = 4
    ASSETS = 5


class LogDamaged(Exception):
    """The data directory is damaged in a way that no crash or power loss causes."""


class LogPosition(NamedTuple):
    """A position, and the chained CRC that identifies the history up to it."""

    position: int
    crc: int


class SegmentHeader(NamedTuple):
    uuid: bytes
    epoch: int
    start: LogPosition
    synced: LogPosition  # Durable when this file got its name. A log may not end before it.

    @property
    def name(self) -> str:
        return f"{PREFIX}{self.start.position:020d}-{self.epoch:010d}"


class LogFrame(NamedTuple):
    after: LogPosition
    payload: bytes
    end: int  # The offset after the frame.


class LogTail(NamedTuple):
    """Where reading a segment stopped: at its end, or at bytes that are no valid frame."""

    log_position: LogPosition
    offset: int
    cut: int  # Bytes after the offset, to be cut if they are a torn write.


def genesis(uuid: bytes) -> LogPosition:
    return LogPosition(0, zlib.crc32(uuid))


def pack_header(header: SegmentHeader) -> bytes:
    raw = HEADER.pack(
        SEGMENT_MAGIC, FORMAT, header.uuid, header.epoch, *header.start, *header.synced
    )
    return raw + CRC.pack(zlib.crc32(raw))


def read_header(name: str, content: bytes) -> SegmentHeader:
    raw = content[: HEADER.size]
    if len(content) < HEADER_SIZE or raw[:8] != SEGMENT_MAGIC:
        raise LogDamaged(f"{name} does not begin with a header. {RESTORE}")
    if zlib.crc32(raw) != CRC.unpack_from(content, HEADER.size)[0]:
        raise LogDamaged(f"the header of {name} is damaged. {RESTORE}")
    _, version, uuid, epoch, position, crc, synced, synced_crc = HEADER.unpack(raw)
    if version not in READABLE:
        raise LogDamaged(f"{name} has format {version}; this program reads {FORMAT}. {UPGRADE}")
    return SegmentHeader(uuid, epoch, LogPosition(position, crc), LogPosition(synced, synced_crc))


RESTORE = (
    "Do not delete anything. Restore the data directory from a copy taken while the core was "
    "stopped, or ask for help. Clients refuse a core that has lost answers."
)
UPGRADE = "Start the version that wrote it, or a later one."


def pack_frame(before: LogPosition, records: int, payload: bytes) -> tuple[bytes, LogPosition]:
    assert len(payload) <= MAX_PAYLOAD, f"a batch of {len(payload)} bytes is too long"
    crc = _chain(before, records, payload)
    head = FRAME.pack(FRAME_MAGIC, len(payload), before.position, records, crc)
    after = LogPosition(before.position + records, crc)
    return b"".join((head, CRC.pack(zlib.crc32(head)), payload)), after


def frames(content: bytes, offset: int, log_position: LogPosition) -> Iterator[LogFrame]:
    """The frames from `log_position` on. It stops at the first one that is not valid."""
    while (frame := _frame_at(content, offset, log_position)) is not None:
        yield frame
        log_position, offset = frame.after, frame.end


def check_tail(name: str, content: bytes, header: SegmentHeader, tail: LogTail) -> None:
    """Raise LogDamaged unless a crash can leave a segment with this end."""
    log_position, offset, cut = tail
    if log_position.position < header.synced.position:
        raise LogDamaged(
            f"{name} is damaged at byte {offset}: it can be read up to position "
            f"{log_position.position}, but position {header.synced.position} was durable. {RESTORE}"
        )
    if cut > MAX_FRAME or _is_stray_frame(content, tail) or _contains_frame(content, offset + 1):
        raise LogDamaged(
            f"{name} is damaged at byte {offset}, position {log_position.position}, and continues "
            f"after that. {RESTORE}"
        )


def read_tail(content: bytes, header: SegmentHeader) -> LogTail:
    """Read the frames of a segment to its end, without looking at their records."""
    log_position, offset = header.start, HEADER_SIZE
    for frame in frames(content, offset, log_position):
        log_position, offset = frame.after, frame.end
    return LogTail(log_position, offset, len(content) - offset)


def sections(payload: bytes) -> Iterator[tuple[RecordKind, int, bytes]]:
    """The sections of a frame whose CRC is valid. An unknown kind is not a disk error."""
    offset = 0
    while offset < len(payload):
        kind, records, length = SECTION.unpack_from(payload, offset)
        offset += SECTION.size
        if kind not in tuple(RecordKind):
            raise LogDamaged(f"the log has records of kind {kind}, which are unknown. {UPGRADE}")
        yield RecordKind(kind), records, payload[offset : offset + length]
        offset += length


def pack_section(kind: RecordKind, records: int, body: bytes) -> bytes:
    return SECTION.pack(kind, records, len(body)) + body


class LogWriter:
    """Writes to the newest segment, one batch at a time: append, sync, then the next."""

    def __init__(self, disk: Disk, header: SegmentHeader, file: File, size: int) -> None:
        self.header = header
        self.log_position = header.synced
        self.size = size
        self._disk = disk
        self._file = file

    async def append(self, records: int, payload: bytes) -> LogPosition:
        """Write one frame and return once it is durable. After an exception the core must stop."""
        frame, after = pack_frame(self.log_position, records, payload)
        self._file.append(frame)
        await self._file.fdatasync()
        self.log_position = after
        self.size += len(frame)
        return after

    def close(self) -> None:
        self._file.close()


async def create(disk: Disk, header: SegmentHeader) -> LogWriter:
    """Create a durable, empty segment under its final name."""
    return await publish(disk, header, await write(disk, header), HEADER_SIZE)


async def write(disk: Disk, header: SegmentHeader, body: memoryview | None = None) -> File:
    """Write a durable segment under a temporary name, which recovery ignores."""
    file = disk.create(TEMPORARY + header.name)
    file.append(pack_header(header))
    if body:
        await file.extend(body)
    await file.fdatasync()
    return file


async def publish(disk: Disk, header: SegmentHeader, file: File, size: int) -> LogWriter:
    """Give a written segment its final name."""
    disk.rename(TEMPORARY + header.name, header.name)
    await disk.fsync_dir()
    return LogWriter(disk, header, file, size)


def _chain(before: LogPosition, records: int, payload: bytes) -> int:
    head = FRAME.pack(FRAME_MAGIC, len(payload), before.position, records, before.crc)
    return zlib.crc32(payload, zlib.crc32(head))


def _frame_at(content: bytes, offset: int, log_position: LogPosition) -> LogFrame | None:
    if not _is_valid_head(content, offset):
        return None
    _, length, position, records, crc = FRAME.unpack_from(content, offset)
    start = offset + FRAME_SIZE
    if length > MAX_PAYLOAD or start + length > len(content) or position != log_position.position:
        return None
    payload = content[start : start + length]
    if _chain(log_position, records, payload) != crc:
        return None
    return LogFrame(LogPosition(position + records, crc), payload, start + length)


def _is_valid_head(content: bytes, offset: int) -> bool:
    end = offset + FRAME.size
    return (
        len(content) >= end + CRC.size
        and content.startswith(FRAME_MAGIC, offset)
        and zlib.crc32(content[offset:end]) == CRC.unpack_from(content, end)[0]
    )


def _is_stray_frame(content: bytes, tail: LogTail) -> bool:
    """Whether the tail starts with a valid head of another position: no torn write does."""
    return _is_valid_head(content, tail.offset) and (
        FRAME.unpack_from(content, tail.offset)[2] != tail.log_position.position
    )


def _contains_frame(content: bytes, offset: int) -> bool:
    """Whether there is a valid head of a frame at or after this offset."""
    while (offset := content.find(FRAME_MAGIC, offset)) >= 0:
        if _is_valid_head(content, offset):
            return True
        offset += 1
    return False
