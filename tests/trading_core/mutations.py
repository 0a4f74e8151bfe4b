"""Every truncation and every flipped bit of a log and of a snapshot, and how each is detected.

`python -m tests.trading_core.mutations [-o json]` counts them. A damaged log must stop the core, or
it must be read as a prefix of the real history that ends before the last answer. In that case every
client that got this answer knows a later position than the core, so it is refused.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator
from typing import NamedTuple
from uuid import UUID

from tests.trading_core.disks import Image, SimDisk
from tests.trading_core.scenes import (
    TEST_LIMITS,
    UUID_A,
    BookDriver,
    batches,
    digest,
    open_core,
    running_core,
)
from tidegate.core.wire import PROTOCOL, FrameKind, Hello, HistoryMark, pack_operations
from tidegate.trading_core import snapshot, wal
from tidegate.trading_core.wal import LogDamaged, LogTail, RecordKind, SegmentHeader

GENESIS = wal.genesis(UUID_A)
FRAMES = 10
SMALLEST_LOG = 4_096
EVERY = 211  # A whole core is started for every 211th mutation. A prime, to hit every bit.


class WrittenLog:
    """A log of complete frames, and the state of the book after each frame."""

    def __init__(self, count: int = FRAMES, synced: int = 0) -> None:
        driver, log_position = BookDriver(), GENESIS
        self.payloads: list[bytes] = []
        self.digests = [digest(driver.book)]
        self.log_positions = [log_position]
        body = b""
        for batch in batches(count):
            before = driver.book.position
            driver.ask(*batch)
            records = driver.book.position - before
            payload = wal.pack_section(RecordKind.OPERATIONS, records, driver.records[-1])
            frame, log_position = wal.pack_frame(log_position, records, payload)
            body += frame
            self.payloads.append(payload)
            self.digests.append(digest(driver.book))
            self.log_positions.append(log_position)
        self.header = SegmentHeader(UUID_A, 1, GENESIS, self.log_positions[synced])
        self.content = wal.pack_header(self.header) + body


def read(content: bytes) -> tuple[list[bytes], LogTail]:
    """Read a segment as a start does: return its payloads, or raise LogDamaged."""
    header = wal.read_header("log", content)
    payloads = [frame.payload for frame in wal.frames(content, wal.HEADER_SIZE, header.start)]
    tail = wal.read_tail(content, header)
    wal.check_tail("log", content, header, tail)
    return payloads, tail


def truncations(content: bytes) -> Iterator[bytes]:
    return (content[:length] for length in range(len(content)))


def flips(content: bytes) -> Iterator[bytes]:
    flipped = bytearray(content)
    for bit in range(len(flipped) * 8):
        flipped[bit >> 3] ^= 1 << (bit & 7)
        yield bytes(flipped)
        flipped[bit >> 3] ^= 1 << (bit & 7)
    assert bytes(flipped) == content


class Tally(NamedTuple):
    """How mutations were detected: the core halted, or started behind its last answer."""

    halted: int = 0
    behind: int = 0
    undetected: int = 0

    def __add__(self, other: object) -> "Tally":
        assert isinstance(other, Tally)
        return Tally(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    @property
    def total(self) -> int:
        return sum(self)


HALTED, BEHIND, UNDETECTED = Tally(1), Tally(0, 1), Tally(0, 0, 1)


def log_mutations(log: WrittenLog) -> Tally:
    tally = Tally()
    for mutate in (truncations, flips):
        for content in mutate(log.content):
            tally += classify(log, content)
    return tally


def classify(log: WrittenLog, content: bytes) -> Tally:
    try:
        payloads, tail = read(content)
    except LogDamaged:
        return HALTED
    count = len(payloads)
    prefix = payloads == log.payloads[:count] and tail.log_position == log.log_positions[count]
    return BEHIND if prefix and count < len(log.payloads) else UNDETECTED


def start_cores(log: WrittenLog) -> Tally:
    """Start a whole core on some of the mutations: it must not start, or must refuse the client."""
    tally = Tally()
    for mutate in (truncations, flips):
        for number, content in enumerate(mutate(log.content)):
            if number % EVERY == 0:
                tally += asyncio.run(start_core(log, content))
    return tally


async def start_core(log: WrittenLog, content: bytes) -> Tally:
    mark = HistoryMark(UUID(bytes=UUID_A), *log.log_positions[-1], 1)
    disk = SimDisk({log.header.name: content})
    try:
        core = await open_core(disk, UUID_A, TEST_LIMITS)
    except LogDamaged:
        return HALTED
    refusal = core.refusal_of(Hello(PROTOCOL, "store", "us", mark))
    is_known_state = digest(core.book) in log.digests
    return BEHIND if is_known_state and refusal is not None else UNDETECTED


def written_snapshot() -> tuple[str, bytes]:
    """The name and content of a snapshot, as it is on the disk."""

    async def write() -> Image:
        disk = SimDisk()
        async with running_core(disk) as core:
            for batch in batches(FRAMES):
                await core.submit(FrameKind.ASK, pack_operations(batch))
            await core.submit(FrameKind.SNAPSHOT, b"")
        return disk.after_power_loss(None)

    image = asyncio.run(write())
    [name] = [name for name in image if name.startswith(snapshot.PREFIX)]
    return name, image[name]


def snapshot_mutations() -> Tally:
    """No mutation may be read as a snapshot: then an older one is used, or the whole log."""
    name, content = written_snapshot()
    tally = Tally()
    for mutate in (truncations, flips):
        for mutant in mutate(content):
            tally += UNDETECTED if snapshot.parse(name, mutant, TEST_LIMITS.marks) else HALTED
    return tally


def report() -> dict[str, int]:
    log = WrittenLog()
    read_back, cores, snapshots = log_mutations(log), start_cores(log), snapshot_mutations()
    return {
        "log_bytes": len(log.content),
        "wal_mutations": read_back.total,
        "halted": read_back.halted,
        "behind": read_back.behind,
        "undetected": read_back.undetected + cores.undetected + snapshots.undetected,
        "cores_started": cores.total,
        "snapshot_mutations": snapshots.total,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.trading_core.mutations", description=__doc__)
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    options = parser.parse_args()
    counts = report()
    if options.output == "json":
        print(json.dumps(counts, indent=2))
    else:
        lines = (f"{name.replace('_', ' '):<20}{count:>8}" for name, count in counts.items())
        print("\n".join(lines))
    return 1 if counts["undetected"] else 0


if __name__ == "__main__":
    sys.exit(main())
