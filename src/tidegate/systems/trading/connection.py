"""A connection to the trading core: how it is made, and requests matched with their replies."""

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
    """Who we are among the processes of a store: distinct, and within what a HELLO may hold."""
    name = f"{host}-{pid}"
    if len(name) <= wire.MAX_NAME:
        return name
    # Long host names often differ in their ends only, so the hash of the whole one is kept.
    digest = hashlib.sha256(host.encode()).hexdigest()[:16]
    rest = f"-{digest}-{pid}"
    return host[: wire.MAX_NAME - len(rest)] + rest


def dial(address: str) -> Connect:
    """How to reach a core at `unix:PATH` or `tcp:HOST:PORT`."""
    scheme, _, rest = address.partition(":")
    host, _, port = rest.rpartition(":")

    async def connect() -> Streams:
        if scheme == "unix":
            return await asyncio.open_unix_connection(rest)
        return await asyncio.open_connection(host.strip("[]") or "127.0.0.1", int(port))

    return connect


class RequestNotCarriedOut(Unreachable):
    """The core does not carry out this request, and has recorded nothing. It serves us otherwise.

    To whoever asks about money this is no answer, as any other Unreachable.
    """


class CoreConnection:
    """One connection that has been welcomed. When it fails, all that waits on it is unknown."""

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
            # The core answers in order, so that nothing behind this one can be had either.
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
                found = await wire.receive(self._reader)
                declined = None
                if found.kind == FrameKind.REFUSED:
                    declined = wire.unpack_refusal(found.body).message
                    if not found.request:
                        self.fail(declined)
                        return
                # A reply that nobody waits for any more came late, and is nobody's answer.
                reply = self._pending.get(found.request)
                if reply is None or reply.done():
                    continue
                if declined is None:
                    reply.set_result(found)
                else:
                    reply.set_exception(RequestNotCarriedOut(declined))
        except LOST as lost:
            self.fail(f"the connection to the trading core was lost: {lost}")

    def fail(self, reason: str) -> Unreachable:
        """End the connection. Everything under way on it becomes unknown."""
        self.failed = True
        for reply in self._pending.values():
            if not reply.done():
                reply.set_exception(Unreachable(reason))
                reply.exception()  # Looked at here: its asker may have been cancelled.
        self._writer.close()
        if self._reading is not asyncio.current_task():
            self._reading.cancel()
        return Unreachable(reason)

    async def close(self) -> None:
        self.fail("the client was closed")
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
