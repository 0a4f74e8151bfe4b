"""Snapshots: the whole state in one file, so that the log before it can be deleted.

A snapshot is written between two batches: the commit loop waits, reads continue. It takes about a
second for a million remembered operations and accounts, and 52 bytes of disk per operation.
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
from tidegate.trading_core.move_columns import pack_cells, read_cells, row_structs
from tidegate.trading_core.operation_memory import (
    ENTRY_ROW_SIZE,
    MAX_RUN,
    MoveRun,
    pack_verbs_and_outcomes,
)
from tidegate.trading_core.wal import CRC, TEMPORARY, UPGRADE, LogDamaged, LogPosition

FORMAT = 2
READABLE = (1, 2)  # Format 1 has floors of several stores and no binding.
MAGIC = b"TIDESNAP"
PREFIX = "snapshot-"
HEADER = struct.Struct(">8sH16sQQI20sQQQI")
ACCOUNT = struct.Struct(f">13s{BALANCE.size}s")
MEMORY = struct.Struct(">20s32s")
WHOLE_ROW = struct.Struct(f"{MEMORY.size}s")
RUN_FIELDS = row_structs("20s6x5sQ16s", OPERATION.size)  # Key, book and asset, owner, amount.
# Key, amount, undoes, account number without its last byte; last byte, position and outcome.
MEMORY_FIELDS = row_structs("20s16s4xIQ", MEMORY.size)
assert MEMORY.size == ENTRY_ROW_SIZE
MARK = struct.Struct(">QI")
CHUNK = 16_384  # Rows written before other tasks get a turn.


class RecentPositions:
    """The CRC at the end of each recent frame, to check the marks that clients present."""

    def __init__(self, limit: int, genesis: LogPosition | None = None) -> None:
        self.limit = limit
        self.positions = array("Q")
        self.crcs = array("I")
        if genesis is not None:
            self.add(genesis)

    def add(self, log_position: LogPosition) -> None:
        self.positions.append(log_position.position)
        self.crcs.append(log_position.crc)
        if len(self.positions) > self.limit + self.limit // 8:
            excess = len(self.positions) - self.limit
            del self.positions[:excess], self.crcs[:excess]

    def oldest(self) -> int:
        return self.positions[0]

    def find(self, position: int) -> int | None:
        index = bisect_left(self.positions, position)
        if index < len(self.positions) and self.positions[index] == position:
            return self.crcs[index]
        return None


class CoreState(NamedTuple):
    """The whole state of a core at one position of its log."""

    uuid: bytes
    epoch: int
    log_position: LogPosition
    book: Book
    marks: RecentPositions


class ServedStore(msgspec.Struct, frozen=True, array_like=True):
    """The store that a core serves and its assets, as stored in a snapshot."""

    binding: Binding
    assets: list[int]


def name_of(position: int) -> str:
    return f"{PREFIX}{position:020d}"


def chunks(state: CoreState) -> Iterator[bytes]:
    """The content of a snapshot in chunks, without the CRC at its end."""
    book, marks = state.book, state.marks
    served = msgspec.msgpack.encode(ServedStore(book.binding, sorted(book.assets)))
    yield HEADER.pack(
        MAGIC,
        FORMAT,
        state.uuid,
        state.epoch,
        *state.log_position,
        book.floor.to_bytes(20),
        len(book.states),
        len(book.memory),
        len(marks.positions),
        len(served),
    )
    yield served
    # Ordered by account number, because the entries of operations refer to it.
    accounts = (
        ACCOUNT.pack(account, BALANCE.pack(state.status, state.balance.to_bytes(16)))
        for account, state in book.states.items()
    )
    mark_rows = (MARK.pack(*mark) for mark in zip(marks.positions, marks.crcs, strict=True))
    operations, runs = _memory_rows(book), CHUNK // MAX_RUN
    for rows, limit in ((accounts, CHUNK), (operations, runs), (mark_rows, CHUNK)):
        while chunk := b"".join(islice(rows, limit)):
            yield chunk


def _memory_rows(book: Book) -> Iterator[bytes]:
    """The rows of all operations in the order of the memory; the rows of a run come together."""
    for entry, group in groupby(book.memory.items(), itemgetter(1)):
        items = list(group)
        if isinstance(entry, int):
            yield b"".join([key + entry.to_bytes(32) for key, _ in items])
            continue
        if not entry.has_entries:
            entry.rows, entry.outcomes, entry.size = _pack_entries(book, entry), b"", ENTRY_ROW_SIZE
        rows = entry.rows
        if len(items) * MEMORY.size != len(rows):  # Some moves of the run were retired or undone.
            by_key = {row[: KEY.size]: row for (row,) in WHOLE_ROW.iter_unpack(rows)}
            rows = b"".join([by_key[key] for key, _ in items])
        yield rows


def _pack_entries(book: Book, run: MoveRun) -> bytes:
    """The rows of a run with the entries that `entry_of_move` gives, packed by columns."""
    cells = read_cells(RUN_FIELDS, run.rows)
    groups = cells[1::4]
    same = groups.count(groups[0]) == len(groups)
    states = book.states.find_all(groups[:1] if same else groups, cells[2::4])
    numbers = [state.number for state in states]
    upper = [number >> 8 for number in numbers]
    packed = pack_verbs_and_outcomes(run.rows, run.outcomes)
    parts = zip(numbers, count(run.before + 1), packed, strict=False)
    lower = [(number & 255) << 56 | position << 8 | low for number, position, low in parts]
    return bytes(pack_cells(MEMORY_FIELDS, (cells[::4], cells[3::4], upper, lower)))


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
    recent = RecentPositions(limit)
    for mark in MARK.iter_unpack(view[offset : offset + marks * MARK.size]):
        recent.add(LogPosition(*mark))
    return CoreState(uuid, epoch, LogPosition(position, crc), book, recent)


async def write(disk: Disk, state: CoreState) -> None:
    """Write a snapshot. It has its final name only once it is durable."""
    name = name_of(state.log_position.position)
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
