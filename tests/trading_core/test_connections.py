"""Connections that hang, break, send garbage or are too many never produce a wrong answer."""

import asyncio
import contextlib
from pathlib import Path
from uuid import UUID

import pytest

from tests.trading_core.local_connection import connect_to, pipe
from tests.trading_core.questions import (
    Connect,
    client,
    core_at,
    credit,
    debit,
    served,
)
from tests.trading_core.scenes import TEST_LIMITS, UUID_A, UUID_B, open_core
from tidegate.core import wire
from tidegate.core.answers import Alarm, Done, Unknown, Unreachable
from tidegate.core.wire import AccountStatus, CoreOutcome, FrameKind, HistoryMark, Streams
from tidegate.systems.trading import (
    CoreRefusesService,
    dial,
)
from tidegate.trading_core.core import Core
from tidegate.trading_core.disk import RealDisk
from tidegate.trading_core.server import OpenSessions
from tidegate.trading_core.session import converse


class HoldingWriter:
    """The core's end of a connection, whose replies a test can hold back."""

    def __init__(self, writer: wire.ByteWriter) -> None:
        self._writer, self.held, self.silent = writer, list[bytes](), False

    def write(self, chunk: bytes, /) -> None:
        if self.silent:
            self.held.append(chunk)
        else:
            self._writer.write(chunk)

    async def drain(self) -> None:
        await self._writer.drain()

    def close(self) -> None:
        self._writer.close()

    async def wait_closed(self) -> None:
        await self._writer.wait_closed()

    def release(self) -> None:
        self.silent = False
        for chunk in self.held:
            self._writer.write(chunk)


class HeldConnections:
    """Connections to a core, which a test can hold back and cut."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.ends: list[HoldingWriter] = []
        self.sessions: set[asyncio.Task[None]] = set()

    async def connect(self) -> Streams:
        client_end, (reader, writer) = pipe()
        writer_end = HoldingWriter(writer)
        self.ends.append(writer_end)
        self.sessions.add(asyncio.ensure_future(converse(self.core, reader, writer_end)))
        return client_end


def test_a_timeout_is_unreachable_for_all_waiting_requests_and_a_late_reply_is_ignored(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        async with core_at(tmp_path) as core:
            connections = HeldConnections(core)
            trading = client(connections.connect, timeout_s=0.5)
            await trading.ask([credit(1, 100)])
            connections.ends[0].silent = True
            asks = [trading.ask([debit(n, 1)]) for n in (2, 3)]
            lost = await asyncio.gather(*asks, return_exceptions=True)
            assert [type(error) for error in lost] == [Unreachable, Unreachable]
            assert core.book.balances == [98]  # The operations were executed all the same.
            connections.ends[0].release()
            # On the next connection the same questions get the answers that were lost.
            again = await trading.ask([debit(2, 1), debit(3, 1), debit(4, 1)])
            assert [a.evidence["position"] for a in again if isinstance(a, Done)] == ["3", "4", "5"]
            assert len(connections.ends) == 2
            assert core.book.balances == [97]
            await trading.close()

    asyncio.run(scene())


def test_a_lost_connection_is_unreachable_and_the_next_ask_reconnects(tmp_path: Path) -> None:
    async def scene() -> None:
        async with core_at(tmp_path) as core:
            connections = HeldConnections(core)
            trading = client(connections.connect)
            first = await trading.ask([credit(1, 100)])
            connections.ends[0].silent = True
            asking = asyncio.ensure_future(trading.ask([debit(2, 5)]))
            await asyncio.sleep(0.02)
            connections.ends[0].close()
            with pytest.raises(Unreachable, match="was lost"):
                await asking
            assert await trading.ask([credit(1, 100)]) == first
            await trading.close()

    asyncio.run(scene())


def test_an_address_without_a_core_is_unreachable(tmp_path: Path) -> None:
    async def scene() -> None:
        for address in (f"unix:{tmp_path / 'none'}", "tcp:127.0.0.1:1", "unix:" + "x" * 200):
            with pytest.raises(Unreachable, match="cannot be reached"):
                await client(dial(address)).ask([credit(1, 1)])

    asyncio.run(scene())


def test_another_program_at_the_address_is_unreachable(tmp_path: Path) -> None:
    async def scene() -> None:
        async def reply_in_http(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            writer.close()

        async with await asyncio.start_unix_server(reply_in_http, tmp_path / "s"):
            with pytest.raises(Unreachable, match="greeting failed"):
                await client(dial(f"unix:{tmp_path / 's'}")).ask([credit(1, 1)])

    asyncio.run(scene())


def test_a_core_that_does_not_greet_is_unreachable() -> None:
    async def scene() -> None:
        async def connect() -> Streams:
            return pipe()[0]

        with pytest.raises(Unreachable, match="greeting failed"):
            await client(connect, timeout_s=0.05).ask([credit(1, 1)])

    asyncio.run(scene())


def test_the_number_of_connections_is_limited(tmp_path: Path) -> None:
    async def scene() -> None:
        async with core_at(tmp_path, TEST_LIMITS._replace(connections=2)) as core:
            sessions = OpenSessions(core)
            server = await asyncio.start_unix_server(sessions.begin, tmp_path / "s")
            clients = [client(dial(f"unix:{tmp_path / 's'}")) for _ in range(3)]
            await clients[0].ask([credit(1, 1)])
            await clients[1].ask([credit(2, 1)])
            with pytest.raises(Unreachable, match="CROWDED"):
                await clients[2].ask([credit(3, 1)])
            assert clients[2].refusal is None  # A later try may succeed, so no alert is needed.
            await clients[0].close()
            await asyncio.sleep(0.05)
            await clients[2].ask([credit(3, 1)])
            for trading in clients:
                await trading.close()
            server.close()
            await asyncio.sleep(0.05)
            await sessions.end()

    asyncio.run(scene())


def test_a_client_that_does_not_read_blocks_no_other_client(tmp_path: Path) -> None:
    async def scene() -> None:
        async with core_at(tmp_path, TEST_LIMITS._replace(drain_s=0.05)) as core:
            sessions = OpenSessions(core)
            server = await asyncio.start_unix_server(sessions.begin, tmp_path / "s")
            reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
            hello = wire.Hello(wire.PROTOCOL, "", "p", None)
            writer.write(wire.frame(FrameKind.HELLO, 0, wire.pack(hello)))
            await wire.receive(reader)
            keys = wire.pack_keys([(UUID(int=n), 0) for n in range(8000)])
            for request in range(1, 300):
                writer.write(wire.frame(FrameKind.QUERY, request, keys))
            trading = client(dial(f"unix:{tmp_path / 's'}"))
            for number in range(1, 20):
                await trading.ask([credit(number, 1)])
            await trading.close()
            writer.transport.abort()
            server.close()
            await sessions.end()

    asyncio.run(scene())


@pytest.mark.parametrize(
    "garbage",
    [
        wire.frame(FrameKind.ASK, 1, b"not an operation"),
        wire.frame(99, 1),
        wire.frame(FrameKind.EVENTS, 1, b"x"),
        wire.frame(FrameKind.HELLO, 1),
        b"garbage of at least one head's length",
    ],
)
def test_garbage_ends_only_the_connection_it_came_on(tmp_path: Path, garbage: bytes) -> None:
    async def scene() -> None:
        async with served(tmp_path) as (core, trading):
            await trading.ask([credit(1, 1)])
            reader, writer = await connect_to(core)()
            hello = wire.Hello(wire.PROTOCOL, "", "", None)
            writer.write(wire.frame(FrameKind.HELLO, 0, wire.pack(hello)))
            assert (await wire.receive(reader)).kind == FrameKind.WELCOME
            writer.write(garbage)
            refused = await wire.receive(reader)
            assert refused.kind == FrameKind.REFUSED
            assert "MALFORMED" in wire.unpack_refusal(refused.body).message
            with pytest.raises(EOFError):
                await wire.receive(reader)
            await trading.ask([credit(2, 1)])

    asyncio.run(scene())


def test_a_stopping_core_still_sends_its_replies(tmp_path: Path) -> None:
    async def scene() -> None:
        core = await open_core(RealDisk(tmp_path), UUID_A, TEST_LIMITS)
        commits = asyncio.ensure_future(core.run())
        trading = client(connect_to(core))
        await trading.ask([credit(1, 1)])
        asking = asyncio.ensure_future(trading.ask([credit(2, 1)]))
        for _ in range(1000):
            if core._queue:
                break
            await asyncio.sleep(0)
        core.stop()
        await commits
        assert await asking == [Done({"position": "3"})]
        with pytest.raises(Unreachable):
            await trading.ask([credit(3, 1)])
        with pytest.raises(Unreachable):
            await trading.ask([credit(3, 1)])
        await trading.close()
        core.disk.unlock()

    asyncio.run(scene())


KNOWN = HistoryMark(UUID(bytes=UUID_A), 5, 55, 3)
STAMP = wire.STAMP.pack(3, 6, 66)
WELCOME = wire.frame(FrameKind.WELCOME, 0, wire.pack(wire.Welcome(KNOWN, bytes(16))))


def scripted(*frames: bytes) -> Connect:
    """A peer that sends these frames, one after each frame that it receives."""

    async def reply(streams: Streams) -> None:
        reader, writer = streams
        with contextlib.suppress(*wire.LOST):
            for frame in frames:
                await wire.receive(reader)
                writer.write(frame)

    tasks: set[asyncio.Task[None]] = set()

    async def connect() -> Streams:
        client_end, peer_end = pipe()
        tasks.add(asyncio.ensure_future(reply(peer_end)))
        return client_end

    return connect


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        ([wire.frame(FrameKind.ANSWERS, 0)], "greeting failed"),
        ([wire.frame(FrameKind.WELCOME, 0, b"x")], "greeting failed"),
        ([WELCOME, wire.frame(FrameKind.ANSWERS, 1, b"x")], "malformed reply"),
        ([WELCOME, wire.frame(FrameKind.ANSWERS, 1, STAMP)], "malformed reply"),
        ([WELCOME, wire.frame(FrameKind.ANSWERS, 1, STAMP + b"x")], "malformed reply"),
        (
            [WELCOME, wire.frame(FrameKind.REFUSED, 0, wire.pack(wire.RefusalFrame(9, "why")))],
            "why",
        ),
        ([WELCOME, wire.frame(FrameKind.REFUSED, 0, b"x")], "was lost"),
        ([WELCOME, b"x" * 64], "was lost"),
    ],
)
def test_a_peer_that_breaks_the_protocol_is_unreachable(frames: list[bytes], message: str) -> None:
    async def scene() -> None:
        trading = client(scripted(*frames), KNOWN)
        with pytest.raises(Unreachable, match=message):
            await trading.ask([credit(1, 1)])
        await trading.close()

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("core_mark", "message"),
    [
        (HistoryMark(UUID(bytes=UUID_B), 5, 55, 3), "not the core that our database knows"),
        (HistoryMark(UUID(bytes=UUID_A), 4, 55, 3), "not the core that our database knows"),
        (HistoryMark(UUID(bytes=UUID_A), 5, 55, 2), "at epoch 2, but 3 was seen"),
    ],
)
def test_the_client_itself_refuses_a_core_it_does_not_know(
    core_mark: HistoryMark, message: str
) -> None:
    async def scene() -> None:
        welcome = wire.frame(FrameKind.WELCOME, 0, wire.pack(wire.Welcome(core_mark, bytes(16))))
        with pytest.raises(CoreRefusesService, match=message):
            await client(scripted(welcome), KNOWN).ask([credit(1, 1)])

    asyncio.run(scene())


def test_a_reply_to_an_unknown_request_is_ignored() -> None:
    async def scene() -> None:
        answer = STAMP + wire.ANSWER.pack(CoreOutcome.DONE, 6)
        stray = wire.frame(FrameKind.ANSWERS, 77, answer) + wire.frame(FrameKind.ANSWERS, 1, answer)
        trading = client(scripted(WELCOME, stray), KNOWN)
        assert await trading.ask([credit(1, 1)]) == [Done({"position": "6"})]
        await trading.close()

    asyncio.run(scene())


def test_an_outcome_of_a_later_core_version_is_unknown() -> None:
    async def scene() -> None:
        answer = wire.frame(FrameKind.ANSWERS, 1, STAMP + wire.ANSWER.pack(31, 6))
        trading = client(scripted(WELCOME, answer), KNOWN)
        assert await trading.ask([credit(1, 1)]) == [Unknown("OUTCOME_31", Alarm.PAGE)]
        await trading.close()

    asyncio.run(scene())


def test_a_busy_core_refuses_administration_too() -> None:
    async def scene() -> None:
        trading = client(scripted(WELCOME, wire.frame(FrameKind.BUSY, 1)), KNOWN)
        with pytest.raises(Unreachable, match="busy; nothing was done"):
            await trading.set_status(1, "SPOT", 7, AccountStatus.FROZEN)
        await trading.close()

    asyncio.run(scene())


def test_a_cancelled_ask_does_not_end_the_connection_of_others(tmp_path: Path) -> None:
    async def scene() -> None:
        async with served(tmp_path) as (_, trading):
            await trading.totals()
            asking = asyncio.ensure_future(trading.ask([credit(1, 1)]))
            await asyncio.sleep(0)
            asking.cancel()
            assert await trading.ask([credit(2, 1), credit(1, 1)]) == [
                Done({"position": "3"}),
                Done({"position": "2"}),
            ]

    asyncio.run(scene())
