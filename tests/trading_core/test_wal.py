"""The log under every truncation and every flipped bit: a prefix of the truth, or a halt."""

import zlib

import pytest

from tests.trading_core.mutations import (
    SMALLEST_LOG,
    Written,
    flips,
    log_mutations,
    read,
    snapshot_mutations,
    started,
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


def test_what_was_written_is_read() -> None:
    log = Written(10)
    payloads, tail = read(log.content)
    assert payloads == log.payloads
    assert tail == (log.places[-1], len(log.content), 0)
    assert state_after(payloads) == log.digests[-1]


def test_every_prefix_of_whole_frames_is_a_state_that_was() -> None:
    log = Written(10)
    for count in range(11):
        assert state_after(log.payloads[:count]) == log.digests[count]


def test_every_truncation_is_a_prefix_or_a_halt() -> None:
    log = Written()
    assert len(log.content) >= SMALLEST_LOG
    for length, content in enumerate(truncations(log.content)):
        try:
            payloads, tail = read(content)
        except LogDamaged:
            assert length < wal.HEADER_SIZE  # Only a file without a header is no crash's doing.
            continue
        assert payloads == log.payloads[: len(payloads)]
        assert tail.place == log.places[len(payloads)]
        assert tail.offset + tail.cut == length


def test_every_flipped_bit_is_a_prefix_or_a_halt() -> None:
    log = Written()
    last = len(log.content) - wal.FRAME_SIZE - len(log.payloads[-1])
    for bit, content in enumerate(flips(log.content)):
        try:
            payloads, tail = read(content)
        except LogDamaged:
            assert bit >> 3 < last  # Before the last frame, it is never taken for a torn write.
        else:
            assert bit >> 3 >= last
            assert payloads == log.payloads[:-1]
            assert tail.place == log.places[-2]
    assert bit + 1 == len(log.content) * 8 >= 32_768


def test_no_mutation_of_a_log_goes_undetected() -> None:
    log = Written()
    found = log_mutations(log)
    assert (found.total, found.undetected) == (len(log.content) * 9, 0)
    assert found.total >= 30_000
    assert min(found.halted, found.behind) > 0
    whole = started(log)
    assert whole.undetected == 0
    assert min(whole.halted, whole.behind) > 0


def test_no_mutation_of_a_snapshot_is_read() -> None:
    found = snapshot_mutations()
    assert found.undetected == 0
    assert found.total >= 30_000


def test_a_cut_below_what_the_header_vouches_for_is_a_halt() -> None:
    log = Written(10, vouched=10)
    for length in range(wal.HEADER_SIZE, len(log.content)):
        with pytest.raises(LogDamaged, match=r"was durable|damaged"):
            read(log.content[:length])
    last = bytearray(log.content)
    last[-1] ^= 1
    with pytest.raises(LogDamaged, match="was durable"):
        read(bytes(last))


def test_a_lying_length_is_not_believed() -> None:
    log = Written(1)
    head = wal.FRAME.pack(wal.FRAME_MAGIC, 2**32 - 1, log.places[-1].position, 1, 0)
    lie = head + wal.CRC.pack(zlib.crc32(head))
    payloads, tail = read(log.content + lie + b"x" * 100)
    assert payloads == log.payloads
    assert tail.cut == len(lie) + 100


def test_rubbish_longer_than_one_frame_is_no_torn_write() -> None:
    log = Written(1)
    with pytest.raises(LogDamaged, match="goes on behind"):
        read(log.content + bytes(wal.MAX_FRAME + 1))
    assert read(log.content + bytes(wal.MAX_FRAME))[0] == log.payloads


def test_a_frame_of_another_place_is_no_torn_write() -> None:
    log = Written(3)
    first = wal.FRAME_SIZE + len(log.payloads[0])
    again = log.content[wal.HEADER_SIZE : wal.HEADER_SIZE + first]
    with pytest.raises(LogDamaged, match="goes on behind"):
        read(log.content + again)


def test_the_magic_of_a_frame_inside_a_torn_frame_means_nothing() -> None:
    log = Written(1)
    torn = wal.pack_frame(log.places[-1], 1, wal.FRAME_MAGIC * 20)[0][:-1]
    assert read(log.content + torn)[1].cut == len(torn)


def test_frames_of_another_history_do_not_chain() -> None:
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
