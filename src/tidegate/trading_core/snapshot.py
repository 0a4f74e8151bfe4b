"""The whole state in one file, so that the log before it may go.

Written between two batches: the commit loop waits, reads go on. It costs about a second for a
million remembered operations and accounts, and 52 bytes of disk for each operation.
"""

import asyncio
import struct
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from itertools import count, groupby, islice
from operator import itemgetter
from typing import NamedTuple

import msgspec

from tidegate.core.wire import BALANCE, KEY, OPERATION, Binding
from tidegate.trading_core.book import Book
from tidegate.trading_core.disk import Disk
from tidegate.trading_core.move_columns import forms_of, pack_cells, read_cells
from tidegate.trading_core.operation_memory import MOST_TOGETHER, NUMBERED, MoveRun, tell
from tidegate.trading_core.wal import CRC, TEMPORARY, UPGRADE, LogDamaged, LogPosition

FORMAT = 2
READABLE = (1, 2)  # 1: floors of several stores, and no binding to one.
MAGIC = b"TIDESNAP"
PREFIX = "snapshot-"
HEADER = struct.Struct(">8sH16sQQI20sQQQI")
ACCOUNT = struct.Struct(f">13s{BALANCE.size}s")
MEMORY = struct.Struct(">20s32s")
WHOLE_ROW = struct.Struct(f"{MEMORY.size}s")
MOVED_ROWS = forms_of("20s6x5sQ16s", OPERATION.size)  # Key, book and asset, owner, amount.
# Key, amount, undoes, the account's number but for its last byte; that, position and outcome.
MEMORY_ROWS = forms_of("20s16s4xIQ", MEMORY.size)
assert MEMORY.size == NUMBERED
MARK = struct.Struct(">QI")
CHUNK = 16_384  # Rows written between two looks at what else there is to do.


class RecentPositions:
    """The CRC at the end of each frame of the recent past: what clients' memories are held to."""

    def __init__(self, limit: int, genesis: LogPosition | None = None) -> None:
        self.limit = limit
        self.positions = array("Q")
        self.crcs = array("I")
        if genesis is not None:
            self.add(genesis)

    def add(self, place: LogPosition) -> None:
        self.positions.append(place.position)
        self.crcs.append(place.crc)
        if len(self.positions) > self.limit + self.limit // 8:
            spare = len(self.positions) - self.limit
            del self.positions[:spare], self.crcs[:spare]

    def oldest(self) -> int:
        return self.positions[0]

    def find(self, position: int) -> int | None:
        index = bisect_left(self.positions, position)
        if index < len(self.positions) and self.positions[index] == position:
            return self.crcs[index]
        return None


class CoreState(NamedTuple):
    """All that a core knows at one place of its history."""

    uuid: bytes
    epoch: int
    place: LogPosition
    book: Book
    marks: RecentPositions


class ServedStore(msgspec.Struct, frozen=True, array_like=True):
    """Whom a core serves, as a snapshot keeps it."""

    binding: Binding
    assets: list[int]


def name_of(position: int) -> str:
    return f"{PREFIX}{position:020d}"


def chunks(state: CoreState) -> Iterator[bytes]:
    """A snapshot's content, piece by piece, but for the CRC at its end."""
    book, marks = state.book, state.marks
    served = msgspec.msgpack.encode(ServedStore(book.binding, sorted(book.assets)))
    yield HEADER.pack(
        MAGIC,
        FORMAT,
        state.uuid,
        state.epoch,
        *state.place,
        book.floor.to_bytes(20),
        len(book.states),
        len(book.memory),
        len(marks.positions),
        len(served),
    )
    yield served
    # In the order of their numbers, which the memory of operations refers to.
    accounts = (
        ACCOUNT.pack(account, BALANCE.pack(state.status, state.balance.to_bytes(16)))
        for account, state in book.states.items()
    )
    listed = (MARK.pack(*mark) for mark in zip(marks.positions, marks.crcs, strict=True))
    for rows, most in ((accounts, CHUNK), (_memory(book), CHUNK // MOST_TOGETHER), (listed, CHUNK)):
        while chunk := b"".join(islice(rows, most)):
            yield chunk


def _memory(book: Book) -> Iterator[bytes]:
    """The rows of all operations, in the order of the memory; those of a run together."""
    for kept, same in groupby(book.memory.items(), itemgetter(1)):
        entries = list(same)
        if isinstance(kept, int):
            yield b"".join([key + kept.to_bytes(32) for key, _ in entries])
            continue
        if not kept.is_numbered:
            kept.rows, kept.outcomes, kept.size = _numbered(book, kept), b"", NUMBERED
        rows = kept.rows
        if len(entries) * MEMORY.size != len(rows):  # Others were retired or undone.
            by_key = {row[: KEY.size]: row for (row,) in WHOLE_ROW.iter_unpack(rows)}
            rows = b"".join([by_key[key] for key, _ in entries])
        yield rows


def _numbered(book: Book, run: MoveRun) -> bytes:
    """What `number_of_move` makes of each, in its bytes: they are cut where its parts begin."""
    cells = read_cells(MOVED_ROWS, run.rows)
    groups = cells[1::4]
    same = groups.count(groups[0]) == len(groups)
    states = book.states.find_all(groups[:1] if same else groups, cells[2::4])
    numbers = [state.number for state in states]
    upper = [number >> 8 for number in numbers]
    told = zip(numbers, count(run.before + 1), tell(run.rows, run.outcomes), strict=False)
    lower = [(number & 255) << 56 | position << 8 | both for number, position, both in told]
    return bytes(pack_cells(MEMORY_ROWS, (cells[::4], cells[3::4], upper, lower)))


def parse(name: str, content: bytes, limit: int) -> CoreState | None:
    """The state, or None if the file is damaged. Another format is not damage: it raises."""
    if len(content) < HEADER.size + CRC.size or content[:8] != MAGIC:
        return None
    if zlib.crc32(content[: -CRC.size]) != CRC.unpack(content[-CRC.size :])[0]:
        return None
    head = HEADER.unpack_from(content)
    _, version, uuid, epoch, position, crc, floor, accounts, operations, marks, length = head
    if version not in READABLE:
        raise LogDamaged(f"{name} has format {version}; this program reads {FORMAT}. {UPGRADE}")
    view, book, offset = memoryview(content), Book(), HEADER.size
    book.position, book.floor = position, int.from_bytes(floor)
    _load_served(book, version, view[offset : offset + length])
    offset += length
    _load_accounts(book, view[offset : offset + accounts * ACCOUNT.size])
    offset += accounts * ACCOUNT.size
    rows = MEMORY.iter_unpack(view[offset : offset + operations * MEMORY.size])
    book.memory = {key: int.from_bytes(value) for key, value in rows}
    offset += operations * MEMORY.size
    window = RecentPositions(limit)
    for mark in MARK.iter_unpack(view[offset : offset + marks * MARK.size]):
        window.add(LogPosition(*mark))
    return CoreState(uuid, epoch, LogPosition(position, crc), book, window)


async def write(disk: Disk, state: CoreState) -> None:
    """Durable under its name, or not there at all."""
    name = name_of(state.place.position)
    file, crc = disk.create(TEMPORARY + name), 0
    for chunk in chunks(state):
        file.append(chunk)
        crc = zlib.crc32(chunk, crc)
        await asyncio.sleep(0)
    file.append(CRC.pack(crc))
    await file.fdatasync()
    file.close()
    disk.rename(TEMPORARY + name, name)
    await disk.fsync_dir()


def _load_served(book: Book, version: int, raw: memoryview) -> None:
    if version == 1:
        floors = msgspec.msgpack.decode(raw, type=dict[str, bytes])
        book.old_floors = {store: int.from_bytes(floor) for store, floor in floors.items()}
        return
    served = msgspec.msgpack.decode(raw, type=ServedStore)
    book.binding, book.assets = served.binding, frozenset(served.assets)


def _load_accounts(book: Book, rows: memoryview) -> None:
    for account, rest in ACCOUNT.iter_unpack(rows):
        state = book.open(account)
        state.status, balance = BALANCE.unpack(rest)
        state.balance = int.from_bytes(balance)
    book.recount()
