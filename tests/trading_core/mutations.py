"""Every truncation and every flipped bit of a log and of a snapshot, and what becomes of each.

`python -m tests.trading_core.mutations [-o json]` counts them. A damaged log must stop the core, or
read as a prefix of the truth that ends before what was answered: then every client that was
answered knows more than the core, and the core refuses to serve it.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator
from typing import NamedTuple
from uuid import UUID

from tests.trading_core.disks import Image, SimDisk
from tests.trading_core.scenes import SMALL, UUID_A, Desk, batches, digest, opened, running
from tidegate.core.wire import PROTOCOL, FrameKind, Hello, HistoryMark, pack_operations
from tidegate.trading_core import snapshot, wal
from tidegate.trading_core.wal import LogDamaged, LogTail, RecordKind, SegmentHeader

GENESIS = wal.genesis(UUID_A)
FRAMES = 10
SMALLEST_LOG = 4_096
EVERY = 211  # So many mutations apart, a whole core is started on one. A prime, to hit every bit.


class Written:
    """A log of whole frames, and the truth at the end of each."""

    def __init__(self, count: int = FRAMES, vouched: int = 0) -> None:
        desk, place = Desk(), GENESIS
        self.payloads: list[bytes] = []
        self.digests = [digest(desk.book)]
        self.places = [place]
        body = b""
        for batch in batches(count):
            before = desk.book.position
            desk.ask(*batch)
            records = desk.book.position - before
            payload = wal.pack_section(RecordKind.OPERATIONS, records, desk.records[-1])
            frame, place = wal.pack_frame(place, records, payload)
            body += frame
            self.payloads.append(payload)
            self.digests.append(digest(desk.book))
            self.places.append(place)
        self.header = SegmentHeader(UUID_A, 1, GENESIS, self.places[vouched])
        self.content = wal.pack_header(self.header) + body


def read(content: bytes) -> tuple[list[bytes], LogTail]:
    """What a start makes of a segment: its payloads, or Damaged."""
    header = wal.read_header("log", content)
    payloads = [frame.payload for frame in wal.frames(content, wal.HEADER_SIZE, header.start)]
    tail = wal.read_tail(content, header)
    wal.judge_tail("log", content, header, tail)
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
    """How mutations were found: the core stopped, or it came back behind what it had answered."""

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


def log_mutations(log: Written) -> Tally:
    found = Tally()
    for mutate in (truncations, flips):
        for content in mutate(log.content):
            found += judged(log, content)
    return found


def judged(log: Written, content: bytes) -> Tally:
    try:
        payloads, tail = read(content)
    except LogDamaged:
        return HALTED
    count = len(payloads)
    prefix = payloads == log.payloads[:count] and tail.place == log.places[count]
    return BEHIND if prefix and count < len(log.payloads) else UNDETECTED


def started(log: Written) -> Tally:
    """The same with a whole core, on some of the mutations: it does not start, or is refused."""
    found = Tally()
    for mutate in (truncations, flips):
        for number, content in enumerate(mutate(log.content)):
            if number % EVERY == 0:
                found += asyncio.run(start(log, content))
    return found


async def start(log: Written, content: bytes) -> Tally:
    told = HistoryMark(UUID(bytes=UUID_A), *log.places[-1], 1)
    disk = SimDisk({log.header.name: content})
    try:
        core = await opened(disk, UUID_A, SMALL)
    except LogDamaged:
        return HALTED
    refusal = core.refuses(Hello(PROTOCOL, "store", "us", told))
    truth = digest(core.book) in log.digests
    return BEHIND if truth and refusal is not None else UNDETECTED


def written_snapshot() -> tuple[str, bytes]:
    """A snapshot of a life of some length, as it is on the disk."""

    async def live() -> Image:
        disk = SimDisk()
        async with running(disk) as core:
            for batch in batches(FRAMES):
                await core.submit(FrameKind.ASK, pack_operations(batch))
            await core.submit(FrameKind.SNAPSHOT, b"")
        return disk.after_power_loss(None)

    image = asyncio.run(live())
    [name] = [name for name in image if name.startswith(snapshot.PREFIX)]
    return name, image[name]


def snapshot_mutations() -> Tally:
    """None of them may be read: then an older snapshot is used, or the whole log."""
    name, content = written_snapshot()
    found = Tally()
    for mutate in (truncations, flips):
        for mutant in mutate(content):
            found += UNDETECTED if snapshot.parse(name, mutant, SMALL.marks) else HALTED
    return found


def report() -> dict[str, int]:
    log = Written()
    read_back, whole, snapshots = log_mutations(log), started(log), snapshot_mutations()
    return {
        "log_bytes": len(log.content),
        "wal_mutations": read_back.total,
        "halted": read_back.halted,
        "behind": read_back.behind,
        "undetected": read_back.undetected + whole.undetected + snapshots.undetected,
        "cores_started": whole.total,
        "snapshot_mutations": snapshots.total,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.trading_core.mutations", description=__doc__)
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    chosen = parser.parse_args()
    said = report()
    if chosen.output == "json":
        print(json.dumps(said, indent=2))
    else:
        print("\n".join(f"{name.replace('_', ' '):<20}{count:>8}" for name, count in said.items()))
    return 1 if said["undetected"] else 0


if __name__ == "__main__":
    sys.exit(main())
