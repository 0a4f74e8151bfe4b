"""The wire format between the core and its clients."""

import asyncio
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.trading_core.scenes import ANN, UUID_A
from tidegate.core import wire
from tidegate.core.wire import (
    Binding,
    CoreBook,
    CoreEvent,
    CoreFrame,
    CoreOutcome,
    CoreVerb,
    FrameKind,
    Hello,
    HistoryMark,
    MalformedFrame,
    Rebinding,
    RefusalFrame,
    Welcome,
    pack_operations,
)


def received(content: bytes) -> CoreFrame:
    async def read() -> CoreFrame:
        reader = asyncio.StreamReader()
        reader.feed_data(content)
        reader.feed_eof()
        return await wire.receive(reader)

    return asyncio.run(read())


def test_a_frame_arrives_as_it_was_sent() -> None:
    assert received(wire.frame(FrameKind.ASK, 7, b"body")) == CoreFrame(FrameKind.ASK, 7, b"body")


def test_every_flipped_bit_and_every_truncation_of_a_frame_is_detected() -> None:
    packed = wire.frame(FrameKind.ASK, 7, b"some body")
    for bit in range(len(packed) * 8):
        flipped = bytearray(packed)
        flipped[bit >> 3] ^= 1 << (bit & 7)
        with pytest.raises((MalformedFrame, EOFError)):
            received(bytes(flipped))
    for length in range(len(packed)):
        with pytest.raises(EOFError):
            received(packed[:length])


def test_a_frame_that_is_too_long_is_refused_before_its_body_is_read() -> None:
    with pytest.raises(MalformedFrame, match="claims 4294967295 bytes"):
        received(wire.HEAD.pack(2**32 - 1, 0, FrameKind.ASK, 1))


def test_messages_arrive_as_they_were_sent() -> None:
    mark = HistoryMark(UUID(bytes=UUID_A), 5, 2**32 - 1, 3)
    for hello in (
        Hello(wire.PROTOCOL, "store", "process", mark, 9),
        Hello(wire.PROTOCOL, "", "", None),
    ):
        assert wire.unpack_hello(wire.pack(hello)) == hello
    welcome = Welcome(mark, bytes(16))
    assert wire.unpack_welcome(wire.pack(welcome)) == welcome
    refusal = RefusalFrame(3, "BEHIND: so far")
    assert wire.unpack_refusal(wire.pack(refusal)) == refusal


@given(st.binary(max_size=64))
@example(b"\x92\x01\xa1\x80")  # Text that is not valid UTF-8.
def test_garbage_raises_malformed_frame_and_nothing_else(content: bytes) -> None:
    for unpack in (wire.unpack_hello, wire.unpack_welcome, wire.unpack_refusal):
        try:
            unpack(content)
        except MalformedFrame:
            continue


def test_the_length_of_a_name_is_limited() -> None:
    with pytest.raises(MalformedFrame, match="a Hello cannot be parsed"):
        wire.unpack_hello(wire.pack(Hello(wire.PROTOCOL, "s" * 65, "p", None)))


@pytest.mark.parametrize("asset", [-1, 2**32])
def test_an_asset_is_a_32_bit_number(asset: int) -> None:
    with pytest.raises(MalformedFrame, match="a Hello cannot be parsed"):
        wire.unpack_hello(wire.pack(Hello(wire.PROTOCOL, "s", "p", None, 0, "", (asset,))))


def test_there_are_as_many_answers_as_questions() -> None:
    stamp = wire.STAMP.pack(1, 2, 3)
    body = stamp + wire.ANSWER.pack(1, 2) * 2
    assert wire.unpack_stamp(body) == (1, 2, 3)
    assert wire.unpack_answers(body, 2) == [(1, 2), (1, 2)]
    with pytest.raises(MalformedFrame, match="3 questions got 2 answers"):
        wire.unpack_answers(body, 3)
    with pytest.raises(MalformedFrame, match="not a whole number"):
        wire.unpack_answers(body + b"x", 2)
    with pytest.raises(MalformedFrame, match="too short for its stamp"):
        wire.unpack_stamp(stamp[:-1])


def test_an_event_contains_every_field() -> None:
    key = wire.pack_keys([(UUID(int=4), 2)])
    amount = (2**127 - 1).to_bytes(16)
    delta = (-(2**127 - 1)).to_bytes(16, signed=True)
    record = wire.RECORD.pack(key, 1, 0, 0, ANN, amount, 1, delta, bytes(16))
    [event] = wire.unpack_events(wire.STAMP.pack(1, 9, 0) + wire.EVENT.pack(9, record))
    assert event == CoreEvent(
        position=9,
        transfer_id=UUID(int=4),
        version=2,
        verb=CoreVerb.DEBIT,
        book=CoreBook.SPOT,
        owner=1001,
        asset_id=5,
        amount=2**127 - 1,
        undoes=0,
        outcome=CoreOutcome.DONE,
        delta=-(2**127 - 1),
        balance=0,
    )


def test_a_record_begins_with_its_operation() -> None:
    operation = wire.CoreOperation(UUID_A, 3, CoreVerb.REFUND, ANN, 12, undoes=1, expect_done=True)
    packed = pack_operations([operation])
    assert wire.OPERATION.unpack(packed) == wire.RECORD.unpack(packed + bytes(33))[:6]


@pytest.mark.parametrize(
    ("verb", "book", "outcome"), [(77, 1, 1), (0, 1, 1), (1, 9, 1), (1, 1, 99)]
)
def test_an_event_with_unknown_codes_is_malformed(verb: int, book: int, outcome: int) -> None:
    key = wire.pack_keys([(UUID(int=4), 2)])
    party = wire.account(book, 5, 1001)
    record = wire.RECORD.pack(key, verb, 2, 0, party, bytes(16), outcome, bytes(16), bytes(16))
    with pytest.raises(MalformedFrame, match="an event cannot be parsed"):
        list(wire.unpack_events(wire.STAMP.pack(1, 9, 0) + wire.EVENT.pack(9, record)))


def test_a_binding_and_the_assets_arrive_as_they_were_sent() -> None:
    binding = Binding("store", "place")
    assert wire.unpack_binding(wire.pack(binding)) == binding
    moved = Rebinding("before", binding)
    assert wire.unpack_rebinding(wire.pack(moved)) == moved
    assert list(wire.rows(wire.ASSET, wire.pack_assets([3, 1]))) == [(1,), (3,)]
