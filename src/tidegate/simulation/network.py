"""Connections to the trading core that lose, delay, repeat and overtake what is sent on them."""

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

LATE_S = (2.5, 20.0)  # Longer than a client waits.
OVERTAKEN_S = (0.05, 1.2)
KIND_AT = 8  # Of the byte in a frame's head that says what the frame is.
ASK, ANSWERS = int(FrameKind.ASK), int(FrameKind.ANSWERS)


class NetworkHost(Protocol):
    """The machine at the other end: the core that runs there, if one does."""

    core: Core | None
    context: Context
    stranger: bool

    def crash(self, fault: Fault) -> None: ...


class NetworkSurroundings(NamedTuple):
    """What the network needs of the world around it."""

    fate: Callable[[str], Fault | None]
    dice: random.Random
    answered: Callable[[bytes, bytes], None]  # The auditor hears each question with its answer.


class ReceiveBuffer:
    """One end of a connection, to be read."""

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


class OneWay:
    """One direction of a connection: what is sent arrives in order, late, or not at all."""

    def __init__(self, network: "Network", line: "SimConnection", inbox: ReceiveBuffer) -> None:
        self.network, self.line, self.inbox = network, line, inbox
        self.silent = False  # Nothing gets through any more, not even the end.
        self.free_s = 0.0  # When what was delayed has arrived.

    def send(self, deliver: Callable[[], None], delay_s: float = 0.0) -> None:
        loop = self.network.loop
        self.free_s = max(self.free_s, loop.now_s + delay_s)
        if self.free_s > loop.now_s:
            self.network.later(self.free_s, lambda: None if self.silent else deliver())
        elif not self.silent:
            deliver()


class SimConnection:
    """A connection: two ways, and what was asked on it."""

    def __init__(self, network: "Network", host: NetworkHost, client: object = None) -> None:
        self.network, self.host, self.client = network, host, client
        self.open = True
        self.hello = b""
        self.asked: dict[int, bytes] = {}
        self.ours, self.theirs = ReceiveBuffer(network.loop), ReceiveBuffer(network.loop)
        self.out, self.back = OneWay(network, self, self.theirs), OneWay(network, self, self.ours)

    def close(self) -> None:
        """Either end hangs up. What is on its way still arrives, and then the end."""
        if self.open:
            self.open = False
            self.network.lines.pop(self, None)
            self.out.send(self.theirs.end)
            self.back.send(self.ours.end)

    def vanish(self) -> None:
        """The other machine is gone, and nobody is left to say so."""
        self.out.silent = self.back.silent = True


class ClientWriter:
    """The client's end: questions suffer their fate here."""

    def __init__(self, line: SimConnection) -> None:
        self.line = line
        self.dead = False

    def write(self, chunk: bytes, /) -> None:
        line = self.line
        if not line.open:
            return
        if chunk[KIND_AT] != ASK:
            line.hello = line.hello or chunk
            line.out.send(lambda: line.theirs.feed(chunk))
            return
        network, head = line.network, HEAD.unpack_from(chunk)
        line.asked[head[3]] = chunk[HEAD.size :]
        fault, delay_s = network.wires.fate("request"), 0.0
        if fault is Fault.LOST:
            line.out.silent = True
        elif fault is Fault.DELAYED:
            delay_s = network.wires.dice.uniform(*LATE_S)
        elif fault is Fault.OVERTAKEN:
            delay_s = network.wires.dice.uniform(*OVERTAKEN_S)
        elif fault is Fault.REPEATED:
            network.repeat_later(line.hello, chunk)
        line.out.send(lambda: line.theirs.feed(chunk), delay_s)
        if fault is Fault.CUT:
            line.close()
        elif fault in CRASH:
            line.host.crash(fault)

    async def drain(self) -> None:
        if self.dead:
            await self.line.network.loop.create_future()
        if not self.line.open:
            raise ConnectionResetError("the connection was cut")

    def close(self) -> None:
        self.line.close()

    async def wait_closed(self) -> None: ...


class CoreWriter(ClientWriter):
    """The core's end: answers suffer theirs."""

    def write(self, chunk: bytes, /) -> None:
        line = self.line
        if not line.open:
            return
        if chunk[KIND_AT] != ANSWERS:
            line.back.send(lambda: line.ours.feed(chunk))
            return
        network = line.network
        network.heard(line, chunk)
        fault, delay_s = network.wires.fate("reply"), 0.0
        if fault is Fault.LOST:
            line.back.silent = True
        elif fault is Fault.DELAYED:
            delay_s = network.wires.dice.uniform(*LATE_S)
        elif fault is Fault.OVERTAKEN:
            delay_s = network.wires.dice.uniform(*OVERTAKEN_S)
        elif fault is Fault.CUT:
            line.close()
            return
        elif fault in CRASH:
            self.dead = True
            line.host.crash(fault)
            return
        line.back.send(lambda: line.ours.feed(chunk), delay_s)


class RepeatWriter(ClientWriter):
    """The core's end of a connection on which an old question comes once more."""

    def write(self, chunk: bytes, /) -> None:
        if chunk[KIND_AT] == ANSWERS:
            # A stranger may believe the greeting of one who knew no core yet: to nobody's harm.
            if not self.line.host.stranger:
                self.line.network.heard(self.line, chunk)
            self.line.theirs.end()


class Network:
    def __init__(self, loop: SimLoop, host: NetworkHost, wires: NetworkSurroundings) -> None:
        self.loop, self.host, self.wires = loop, host, wires
        self.lines: dict[SimConnection, None] = {}
        self.pending: dict[SimHandle, Callable[[], None]] = {}  # What is still on its way.

    async def connect(self, client: object) -> Streams:
        fault = self.wires.fate("connect")
        if fault is Fault.LOST:
            await self.loop.create_future()  # Until the caller's patience is over.
        if fault is Fault.CUT or self.host.core is None:
            raise ConnectionRefusedError("nobody listens there")
        line = SimConnection(self, self.host, client)
        self.lines[line] = None
        self._serve(line, CoreWriter(line))
        return line.ours, ClientWriter(line)

    def _serve(self, line: SimConnection, writer: ClientWriter) -> None:
        core = self.host.core
        assert core is not None
        session = converse(core, line.theirs, writer)
        self.loop.create_task(session, context=self.host.context)

    def heard(self, line: SimConnection, chunk: bytes) -> None:
        request = HEAD.unpack_from(chunk)[3]
        self.wires.answered(line.asked.pop(request), chunk[HEAD.size :])

    def later(self, when_s: float, deliver: Callable[[], None]) -> None:
        def arrive() -> None:
            self.pending.pop(due, None)
            deliver()

        due = self.loop.call_at(when_s, arrive, context=self.loop.own)
        self.pending[due] = deliver

    def repeat_later(self, hello: bytes, chunk: bytes) -> None:
        delay_s = self.wires.dice.random() * LATE_S[1]
        self.later(self.loop.now_s + delay_s, lambda: self._repeat(hello, chunk))

    def _repeat(self, hello: bytes, chunk: bytes) -> None:
        """An old question on a fresh connection, behind a greeting that the core accepts."""
        if self.host.core is not None:
            line = SimConnection(self, self.host)
            line.asked[HEAD.unpack_from(chunk)[3]] = chunk[HEAD.size :]
            self._serve(line, RepeatWriter(line))
            line.theirs.feed(hello + chunk)

    def flush(self) -> None:
        """Everything that is still on its way arrives now."""
        for due, deliver in list(self.pending.items()):
            due.cancel()
            del self.pending[due]
            deliver()

    def leave(self, client: object) -> None:
        """A client has died; its machine says so."""
        for line in [line for line in self.lines if line.client is client]:
            line.close()

    def hang_up(self, *, silently: bool) -> None:
        """The core is gone: its clients are told, or hear nothing any more."""
        for line in list(self.lines):
            if silently:
                line.vanish()
            else:
                line.close()
        self.lines.clear()
