"""The log under every truncation and every flipped bit: a prefix of the truth, or a halt."""

import zlib

import pytest

from tests.trading_core.scenes import UUID_A, Desk, batches, digest
from tidegate.trading_core import wal
from tidegate.trading_core.book import Book
from tidegate.trading_core.recovery import replay
from tidegate.trading_core.wal import Damaged, Header, Place, Section, Tail

GENESIS = wal.genesis(UUID_A)


class Written:
    """A log of whole frames, and the truth at the end of each."""

    def __init__(self, count: int, vouched: int = 0) -> None:
        desk, place = Desk(), GENESIS
        self.payloads: list[bytes] = []
        self.digests = [digest(desk.book)]
        self.places = [place]
        body = b""
        for batch in batches(count):
            before = desk.book.position
            desk.ask(*batch)
            records = desk.book.position - before
            payload = wal.pack_section(Section.OPERATIONS, records, desk.records[-1])
            frame, place = wal.pack_frame(place, records, payload)
            body += frame
            self.payloads.append(payload)
            self.digests.append(digest(desk.book))
            self.places.append(place)
        self.header = Header(UUID_A, 1, GENESIS, self.places[vouched])
        self.content = wal.pack_header(self.header) + body


def read(content: bytes) -> tuple[list[bytes], Tail]:
    """What a start makes of a segment: its payloads, or Damaged."""
    header = wal.read_header("log", content)
    payloads = [frame.payload for frame in wal.frames(content, wal.HEADER_SIZE, header.start)]
    tail = wal.read_tail(content, header)
    wal.judge_tail("log", content, header, tail)
    return payloads, tail


def state_after(payloads: list[bytes]) -> str:
    book = Book()
    for payload in payloads:
        replay(book, payload)
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
    log = Written(10)
    assert len(log.content) >= 4096
    for length in range(len(log.content)):
        try:
            payloads, tail = read(log.content[:length])
        except Damaged:
            assert length < wal.HEADER_SIZE  # Only a file without a header is no crash's doing.
            continue
        assert payloads == log.payloads[: len(payloads)]
        assert tail.place == log.places[len(payloads)]
        assert tail.offset + tail.cut == length


def test_every_flipped_bit_is_a_prefix_or_a_halt() -> None:
    log = Written(10)
    last = len(log.content) - wal.FRAME_SIZE - len(log.payloads[-1])
    flipped = bytearray(log.content)
    halts = cuts = 0
    for bit in range(len(flipped) * 8):
        byte, mask = bit >> 3, 1 << (bit & 7)
        flipped[byte] ^= mask
        try:
            payloads, tail = read(bytes(flipped))
        except Damaged:
            assert byte < last  # Before the last frame, damage is never taken for a torn write.
            halts += 1
        else:
            assert byte >= last
            assert payloads == log.payloads[:-1]
            assert tail.place == log.places[-2]
            cuts += 1
        flipped[byte] ^= mask
    assert halts + cuts == len(flipped) * 8 >= 32_768
    assert bytes(flipped) == log.content


def test_a_cut_below_what_the_header_vouches_for_is_a_halt() -> None:
    log = Written(10, vouched=10)
    for length in range(wal.HEADER_SIZE, len(log.content)):
        with pytest.raises(Damaged, match=r"was durable|damaged"):
            read(log.content[:length])
    last = bytearray(log.content)
    last[-1] ^= 1
    with pytest.raises(Damaged, match="was durable"):
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
    with pytest.raises(Damaged, match="goes on behind"):
        read(log.content + bytes(wal.MAX_FRAME + 1))
    assert read(log.content + bytes(wal.MAX_FRAME))[0] == log.payloads


def test_a_frame_of_another_place_is_no_torn_write() -> None:
    log = Written(3)
    first = wal.FRAME_SIZE + len(log.payloads[0])
    again = log.content[wal.HEADER_SIZE : wal.HEADER_SIZE + first]
    with pytest.raises(Damaged, match="goes on behind"):
        read(log.content + again)


def test_the_magic_of_a_frame_inside_a_torn_frame_means_nothing() -> None:
    log = Written(1)
    torn = wal.pack_frame(log.places[-1], 1, wal.FRAME_MAGIC * 20)[0][:-1]
    assert read(log.content + torn)[1].cut == len(torn)


def test_frames_of_another_history_do_not_chain() -> None:
    payload = wal.pack_section(Section.OPERATIONS, 0, b"")
    frame, _ = wal.pack_frame(Place(0, GENESIS.crc ^ 1), 1, payload)
    assert list(wal.frames(frame, 0, GENESIS)) == []


def test_another_format_is_refused() -> None:
    raw = wal.HEADER.pack(wal.SEGMENT_MAGIC, wal.FORMAT + 1, UUID_A, 1, *GENESIS, *GENESIS)
    with pytest.raises(Damaged, match="format 2; this program reads 1"):
        wal.read_header("log", raw + wal.CRC.pack(zlib.crc32(raw)))


def test_an_unknown_kind_of_record_is_refused() -> None:
    with pytest.raises(Damaged, match="records of kind 77"):
        list(wal.sections(wal.SECTION.pack(77, 1, 3) + b"abc"))
