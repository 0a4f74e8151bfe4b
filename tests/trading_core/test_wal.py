"""Every truncation and every flipped bit of the log gives a prefix of the history, or a halt."""

import zlib

import pytest

from tests.trading_core.mutations import (
    SMALLEST_LOG,
    WrittenLog,
    flips,
    log_mutations,
    read,
    snapshot_mutations,
    start_cores,
    truncations,
)
from tests.trading_core.scenes import UUID_A, digest
from tidegate.trading_core import wal
from tidegate.trading_core.book import Book
from tidegate.trading_core.recovery import replay
from tidegate.trading_core.wal import LogDamaged, LogPosition, RecordKind

GENESIS = wal.genesis(UUID_A)


def state_after(payloads: list[bytes]) -> str:
    book = Book()
    for payload in payloads:
        replay(book, payload)
    book.recount()
    return digest(book)


def test_a_written_log_is_read_back() -> None:
    log = WrittenLog(10)
    payloads, tail = read(log.content)
    assert payloads == log.payloads
    assert tail == (log.log_positions[-1], len(log.content), 0)
    assert state_after(payloads) == log.digests[-1]


def test_every_prefix_of_whole_frames_gives_an_earlier_state() -> None:
    log = WrittenLog(10)
    for count in range(11):
        assert state_after(log.payloads[:count]) == log.digests[count]


def test_every_truncation_is_a_prefix_or_a_halt() -> None:
    log = WrittenLog()
    assert len(log.content) >= SMALLEST_LOG
    for length, content in enumerate(truncations(log.content)):
        try:
            payloads, tail = read(content)
        except LogDamaged:
            assert length < wal.HEADER_SIZE  # A crash never leaves a file without a header.
            continue
        assert payloads == log.payloads[: len(payloads)]
        assert tail.log_position == log.log_positions[len(payloads)]
        assert tail.offset + tail.cut == length


def test_every_flipped_bit_is_a_prefix_or_a_halt() -> None:
    log = WrittenLog()
    last = len(log.content) - wal.FRAME_SIZE - len(log.payloads[-1])
    for bit, content in enumerate(flips(log.content)):
        try:
            payloads, tail = read(content)
        except LogDamaged:
            assert bit >> 3 < last  # Damage before the last frame is never treated as a torn write.
        else:
            assert bit >> 3 >= last
            assert payloads == log.payloads[:-1]
            assert tail.log_position == log.log_positions[-2]
    assert bit + 1 == len(log.content) * 8 >= 32_768


def test_no_mutation_of_a_log_goes_undetected() -> None:
    log = WrittenLog()
    tally = log_mutations(log)
    assert (tally.total, tally.undetected) == (len(log.content) * 9, 0)
    assert tally.total >= 30_000
    assert min(tally.halted, tally.behind) > 0
    cores = start_cores(log)
    assert cores.undetected == 0
    assert min(cores.halted, cores.behind) > 0


def test_no_mutation_of_a_snapshot_is_read() -> None:
    tally = snapshot_mutations()
    assert tally.undetected == 0
    assert tally.total >= 30_000


def test_a_log_that_ends_before_the_durable_position_of_its_header_is_a_halt() -> None:
    log = WrittenLog(10, synced=10)
    for length in range(wal.HEADER_SIZE, len(log.content)):
        with pytest.raises(LogDamaged, match=r"was durable|damaged"):
            read(log.content[:length])
    last = bytearray(log.content)
    last[-1] ^= 1
    with pytest.raises(LogDamaged, match="was durable"):
        read(bytes(last))


def test_a_frame_with_a_wrong_length_is_cut() -> None:
    log = WrittenLog(1)
    head = wal.FRAME.pack(wal.FRAME_MAGIC, 2**32 - 1, log.log_positions[-1].position, 1, 0)
    frame = head + wal.CRC.pack(zlib.crc32(head))
    payloads, tail = read(log.content + frame + b"x" * 100)
    assert payloads == log.payloads
    assert tail.cut == len(frame) + 100


def test_garbage_longer_than_one_frame_is_not_a_torn_write() -> None:
    log = WrittenLog(1)
    with pytest.raises(LogDamaged, match="continues after that"):
        read(log.content + bytes(wal.MAX_FRAME + 1))
    assert read(log.content + bytes(wal.MAX_FRAME))[0] == log.payloads


def test_a_frame_of_another_position_is_not_a_torn_write() -> None:
    log = WrittenLog(3)
    first = wal.FRAME_SIZE + len(log.payloads[0])
    again = log.content[wal.HEADER_SIZE : wal.HEADER_SIZE + first]
    with pytest.raises(LogDamaged, match="continues after that"):
        read(log.content + again)


def test_the_magic_of_a_frame_inside_a_torn_frame_is_ignored() -> None:
    log = WrittenLog(1)
    torn = wal.pack_frame(log.log_positions[-1], 1, wal.FRAME_MAGIC * 20)[0][:-1]
    assert read(log.content + torn)[1].cut == len(torn)


def test_frames_of_another_history_are_not_read() -> None:
    payload = wal.pack_section(RecordKind.OPERATIONS, 0, b"")
    frame, _ = wal.pack_frame(LogPosition(0, GENESIS.crc ^ 1), 1, payload)
    assert list(wal.frames(frame, 0, GENESIS)) == []


def test_another_format_is_refused() -> None:
    raw = wal.HEADER.pack(wal.SEGMENT_MAGIC, wal.FORMAT + 1, UUID_A, 1, *GENESIS, *GENESIS)
    with pytest.raises(LogDamaged, match="format 3; this program reads 2"):
        wal.read_header("log", raw + wal.CRC.pack(zlib.crc32(raw)))


def test_an_unknown_kind_of_record_is_refused() -> None:
    with pytest.raises(LogDamaged, match="records of kind 77"):
        list(wal.sections(wal.SECTION.pack(77, 1, 3) + b"abc"))
