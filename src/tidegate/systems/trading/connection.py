"""A connection to the trading core, with each reply matched to its request."""

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from tidegate.core import wire
from tidegate.core.answers import Unreachable
from tidegate.core.wire import CoreFrame, FrameKind, Streams

LOST = (*wire.LOST, TimeoutError)
MAX_IN_FLIGHT = 1_024
MAX_REQUEST = wire.MAX_U32

Connect: TypeAlias = Callable[[], Awaitable[Streams]]


def worker_name(host: str, pid: int) -> str:
    """A name for this process, unique in its store and short enough for a HELLO."""
    name = f"{host}-{pid}"
    if len(name) <= wire.MAX_NAME:
        return name
    # Long host names often differ only at the end, so add a hash of the full name.
    digest = hashlib.sha256(host.encode()).hexdigest()[:16]
    suffix = f"-{digest}-{pid}"
    return host[: wire.MAX_NAME - len(suffix)] + suffix


def dial(address: str) -> Connect:
    """Return a function that connects to a core at `unix:PATH` or `tcp:HOST:PORT`."""
    scheme, _, rest = address.partition(":")
    host, _, port = rest.rpartition(":")

    async def connect() -> Streams:
        if scheme == "unix":
            return await asyncio.open_unix_connection(rest)
        return await asyncio.open_connection(host.strip("[]") or "127.0.0.1", int(port))

    return connect


class RequestNotCarriedOut(Unreachable):
    """The core does not carry out this request, and has recorded nothing. It serves other requests.

    For a question about money this is no answer, like every other Unreachable.
    """


class CoreConnection:
    """One connection after its greeting. If it fails, every pending request is unknown."""

    def __init__(self, streams: Streams) -> None:
        self._reader, self._writer = streams
        self._pending: dict[int, asyncio.Future[CoreFrame]] = {}
        self._request = 0
        self._slots = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._reading = asyncio.ensure_future(self._read())
        self.failed = False

    async def call(self, kind: FrameKind, body: bytes, timeout_s: float) -> CoreFrame:
        try:
            async with asyncio.timeout(timeout_s), self._slots:
                return await self._exchange(kind, body)
        except TimeoutError:
            # The core answers in order, so no later reply can arrive before this one.
            raise self.fail(f"no answer within {timeout_s} s") from None

    async def _exchange(self, kind: FrameKind, body: bytes) -> CoreFrame:
        if self.failed:
            raise Unreachable("the connection to the trading core was lost")
        self._request = request = self._request % MAX_REQUEST + 1
        reply: asyncio.Future[CoreFrame] = asyncio.get_running_loop().create_future()
        self._pending[request] = reply
        try:
            self._writer.write(wire.frame(kind, request, body))
            await self._writer.drain()
            return await reply
        except OSError as lost:
            raise self.fail(f"the connection to the trading core was lost: {lost}") from lost
        finally:
            self._pending.pop(request, None)

    async def _read(self) -> None:
        try:
            while True:
                frame = await wire.receive(self._reader)
                refusal = None
                if frame.kind == FrameKind.REFUSED:
                    refusal = wire.unpack_refusal(frame.body).message
                    if not frame.request:
                        self.fail(refusal)
                        return
                # A reply without a pending request came too late: ignore it.
                reply = self._pending.get(frame.request)
                if reply is None or reply.done():
                    continue
                if refusal is None:
                    reply.set_result(frame)
                else:
                    reply.set_exception(RequestNotCarriedOut(refusal))
        except LOST as lost:
            self.fail(f"the connection to the trading core was lost: {lost}")

    def fail(self, reason: str) -> Unreachable:
        """Close the connection. Every pending request becomes unknown."""
        self.failed = True
        for reply in self._pending.values():
            if not reply.done():
                reply.set_exception(Unreachable(reason))
                # Mark the exception as retrieved: the caller may have been cancelled.
                reply.exception()
        self._writer.close()
        if self._reading is not asyncio.current_task():
            self._reading.cancel()
        return Unreachable(reason)

    async def close(self) -> None:
        self.fail("the client was closed")
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
