"""Connections to the trading core that lose, delay, repeat or reorder messages."""

import asyncio
import random
from collections.abc import Callable
from contextvars import Context
from typing import NamedTuple, Protocol

from tidegate.core.wire import HEAD, FrameKind, Streams
from tidegate.simulation.faults import CRASH, Fault
from tidegate.simulation.loop import SimHandle, SimLoop
from tidegate.trading_core.core import Core
from tidegate.trading_core.session import converse

LATE_S = (2.5, 20.0)  # Longer than a client's timeout.
OVERTAKEN_S = (0.05, 1.2)
KIND_OFFSET = 8  # The offset of the frame kind in a frame's head.
ASK, ANSWERS = int(FrameKind.ASK), int(FrameKind.ANSWERS)


class NetworkHost(Protocol):
    """The machine at the other end, with the core that runs on it, if one does."""

    core: Core | None
    context: Context
    foreign: bool

    def crash(self, fault: Fault) -> None: ...


class NetworkEnvironment(NamedTuple):
    """The parts of the world that the network needs."""

    next_fault: Callable[[str], Fault | None]
    dice: random.Random
    answered: Callable[[bytes, bytes], None]  # Gives each question and its answer to the auditor.


class ReceiveBuffer:
    """The reading end of one direction of a connection."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._buffer = bytearray()
        self._waiting: asyncio.Future[None] | None = None
        self._ended = False

    def feed(self, chunk: bytes) -> None:
        self._buffer += chunk
        self._wake()

    def end(self) -> None:
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    async def readexactly(self, n: int, /) -> bytes:
        buffer = self._buffer
        while len(buffer) < n:
            if self._ended:
                raise asyncio.IncompleteReadError(bytes(buffer), n)
            self._waiting = self._loop.create_future()
            await self._waiting
        chunk = bytes(buffer[:n])
        del buffer[:n]
        return chunk


class Direction:
    """One direction of a connection: messages arrive in order, late, or not at all."""

    def __init__(self, network: "Network") -> None:
        self.network = network
        self.silent = False  # Nothing arrives any more, not even the end of the stream.
        self.free_s = 0.0  # When the last delayed message has arrived.

    def send(self, deliver: Callable[[], None], delay_s: float = 0.0) -> None:
        loop = self.network.loop
        self.free_s = max(self.free_s, loop.now_s + delay_s)
        if self.free_s > loop.now_s:
            self.network.deliver_at(self.free_s, lambda: None if self.silent else deliver())
        elif not self.silent:
            deliver()


class SimConnection:
    """A connection with its two directions, and the questions that were sent on it."""

    def __init__(self, network: "Network", host: NetworkHost, client: object = None) -> None:
        self.network, self.host, self.client = network, host, client
        self.open = True
        self.hello = b""
        self.questions: dict[int, bytes] = {}
        self.from_core, self.to_core = ReceiveBuffer(network.loop), ReceiveBuffer(network.loop)
        self.out, self.back = Direction(network), Direction(network)

    def close(self) -> None:
        """Either end closes. Messages that were sent before still arrive, then the end."""
        if self.open:
            self.open = False
            self.network.connections.pop(self, None)
            self.out.send(self.to_core.end)
            self.back.send(self.from_core.end)

    def go_silent(self) -> None:
        """The other machine is off: nothing arrives any more, and the client is not notified."""
        self.out.silent = self.back.silent = True


class ClientWriter:
    """The client's end. The faults of questions are injected here."""

    def __init__(self, connection: SimConnection) -> None:
        self.connection = connection
        self.dead = False

    def write(self, chunk: bytes, /) -> None:
        connection = self.connection
        if not connection.open:
            return
        if chunk[KIND_OFFSET] != ASK:
            connection.hello = connection.hello or chunk
            connection.out.send(lambda: connection.to_core.feed(chunk))
            return
        network, head = connection.network, HEAD.unpack_from(chunk)
        connection.questions[head[3]] = chunk[HEAD.size :]
        fault = network.environment.next_fault("request")
        delay_s = network.delay_s(connection.out, fault)
        if fault is Fault.REPEATED:
            network.repeat_later(connection.hello, chunk)
        connection.out.send(lambda: connection.to_core.feed(chunk), delay_s)
        if fault is Fault.CUT:
            connection.close()
        elif fault in CRASH:
            connection.host.crash(fault)

    async def drain(self) -> None:
        if self.dead:
            await self.connection.network.loop.create_future()
        if not self.connection.open:
            raise ConnectionResetError("the connection was cut")

    def close(self) -> None:
        self.connection.close()

    async def wait_closed(self) -> None: ...


class CoreWriter(ClientWriter):
    """The core's end. The faults of answers are injected here."""

    def write(self, chunk: bytes, /) -> None:
        connection = self.connection
        if not connection.open:
            return
        if chunk[KIND_OFFSET] != ANSWERS:
            connection.back.send(lambda: connection.from_core.feed(chunk))
            return
        network = connection.network
        network.report_answers(connection, chunk)
        fault = network.environment.next_fault("reply")
        delay_s = network.delay_s(connection.back, fault)
        if fault is Fault.CUT:
            connection.close()
            return
        if fault in CRASH:
            self.dead = True
            connection.host.crash(fault)
            return
        connection.back.send(lambda: connection.from_core.feed(chunk), delay_s)


class RepeatWriter(ClientWriter):
    """The core's end of a connection on which an old question is repeated."""

    def write(self, chunk: bytes, /) -> None:
        if chunk[KIND_OFFSET] == ANSWERS:
            # A foreign core may accept the hello of a client that knew no core yet. No harm.
            if not self.connection.host.foreign:
                self.connection.network.report_answers(self.connection, chunk)
            self.connection.to_core.end()


class Network:
    def __init__(self, loop: SimLoop, host: NetworkHost, environment: NetworkEnvironment) -> None:
        self.loop, self.host, self.environment = loop, host, environment
        self.connections: dict[SimConnection, None] = {}
        self.pending: dict[SimHandle, Callable[[], None]] = {}  # Messages that have not arrived.

    def delay_s(self, direction: Direction, fault: Fault | None) -> float:
        """How late a message arrives. From a lost message on, nothing arrives any more."""
        if fault is Fault.LOST:
            direction.silent = True
        elif fault is Fault.DELAYED:
            return self.environment.dice.uniform(*LATE_S)
        elif fault is Fault.OVERTAKEN:
            return self.environment.dice.uniform(*OVERTAKEN_S)
        return 0.0

    async def connect(self, client: object) -> Streams:
        fault = self.environment.next_fault("connect")
        if fault is Fault.LOST:
            await self.loop.create_future()  # Until the caller's timeout.
        if fault is Fault.CUT or self.host.core is None:
            raise ConnectionRefusedError("the core does not run")
        connection = SimConnection(self, self.host, client)
        self.connections[connection] = None
        self._serve(connection, CoreWriter(connection))
        return connection.from_core, ClientWriter(connection)

    def _serve(self, connection: SimConnection, writer: ClientWriter) -> None:
        core = self.host.core
        assert core is not None
        session = converse(core, connection.to_core, writer)
        self.loop.create_task(session, context=self.host.context)

    def report_answers(self, connection: SimConnection, chunk: bytes) -> None:
        request = HEAD.unpack_from(chunk)[3]
        self.environment.answered(connection.questions.pop(request), chunk[HEAD.size :])

    def deliver_at(self, when_s: float, deliver: Callable[[], None]) -> None:
        def arrive() -> None:
            self.pending.pop(handle, None)
            deliver()

        handle = self.loop.call_at(when_s, arrive, context=self.loop.world_context)
        self.pending[handle] = deliver

    def repeat_later(self, hello: bytes, chunk: bytes) -> None:
        delay_s = self.environment.dice.random() * LATE_S[1]
        self.deliver_at(self.loop.now_s + delay_s, lambda: self._repeat(hello, chunk))

    def _repeat(self, hello: bytes, chunk: bytes) -> None:
        """Send an old question on a new connection, after a hello that the core accepts."""
        if self.host.core is not None:
            connection = SimConnection(self, self.host)
            connection.questions[HEAD.unpack_from(chunk)[3]] = chunk[HEAD.size :]
            self._serve(connection, RepeatWriter(connection))
            connection.to_core.feed(hello + chunk)

    def flush(self) -> None:
        """Deliver all pending messages now."""
        for handle, deliver in list(self.pending.items()):
            handle.cancel()
            del self.pending[handle]
            deliver()

    def client_died(self, client: object) -> None:
        """Close the connections of a dead client, as its operating system does."""
        for connection in [
            connection for connection in self.connections if connection.client is client
        ]:
            connection.close()

    def disconnect_all(self, *, silently: bool) -> None:
        """The core has ended: close its connections, or let them go silent."""
        for connection in list(self.connections):
            if silently:
                connection.go_silent()
            else:
                connection.close()
        self.connections.clear()
