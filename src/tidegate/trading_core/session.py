"""A client's session: a handshake, then requests, answered in the order in which they came.

If a client does not read its replies, the core soon stops reading its requests. So the number of
its waiting requests is bounded, and other clients are not blocked.
"""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import NamedTuple

from tidegate.core import wire
from tidegate.core.wire import (
    Binding,
    ByteReader,
    ByteWriter,
    CoreFrame,
    FrameKind,
    MalformedFrame,
    RefusalFrame,
    SessionRefusal,
)
from tidegate.trading_core.core import Core, CoreBusy, CoreStopped
from tidegate.trading_core.events import EventsGone, events
from tidegate.trading_core.requests import REPLIES, BindingChanged, RequestDeclined


class PendingReply(NamedTuple):
    request: int
    kind: FrameKind
    body: asyncio.Future[bytes] | bytes


async def converse(core: Core, reader: ByteReader, writer: ByteWriter) -> None:
    """Serve one client until it disconnects, breaks the protocol, or the core stops."""
    try:
        async with asyncio.timeout(core.limits.hello_s):
            session = await _handshake(core, reader, writer)
        if session is not None:
            await _serve(core, session, (reader, writer))
    except MalformedFrame as error:
        _refuse(writer, RefusalFrame(SessionRefusal.MALFORMED, f"MALFORMED: {error}"))
    except BindingChanged as error:
        _refuse(writer, RefusalFrame(SessionRefusal.REBOUND, f"REBOUND: {error}"))
    except EventsGone as error:
        _refuse(writer, RefusalFrame(SessionRefusal.EVENTS_GONE, f"EVENTS_GONE: {error}"))
    except (*wire.LOST, TimeoutError, CoreStopped):
        pass  # The client can no longer be reached.
    finally:
        await close_writer(writer, core.limits.drain_s)


async def refuse_connection(core: Core, writer: ByteWriter) -> None:
    """Refuse a client because too many connections are open."""
    message = f"CROWDED: all {core.limits.connections} allowed connections are open; try later"
    _refuse(writer, RefusalFrame(SessionRefusal.CROWDED, message))
    await close_writer(writer, core.limits.drain_s)


async def close_writer(writer: ByteWriter, drain_s: float) -> None:
    """Close the connection; wait at most `drain_s` until the written bytes are sent."""
    writer.close()
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(drain_s):
            await writer.wait_closed()


def _refuse(writer: ByteWriter, refusal: RefusalFrame) -> None:
    writer.write(wire.frame(FrameKind.REFUSED, 0, wire.pack(refusal)))


async def _handshake(core: Core, reader: ByteReader, writer: ByteWriter) -> Binding | None:
    """Answer the HELLO of a client. Return its binding, or None if it is refused."""
    first = await wire.receive(reader)
    if first.kind != FrameKind.HELLO:
        raise MalformedFrame("the first frame must be a HELLO")
    hello = wire.unpack_hello(first.body)
    refusal = core.refusal_of(hello)
    if refusal is None:
        try:
            refusal = await core.register(hello)
        except CoreBusy:
            return None
    if refusal is not None:
        _refuse(writer, refusal)
        return None
    writer.write(wire.frame(FrameKind.WELCOME, first.request, wire.pack(core.welcome())))
    await writer.drain()
    return Binding(hello.store, hello.place)


async def _serve(core: Core, session: Binding, streams: wire.Streams) -> None:
    replies: asyncio.Queue[PendingReply] = asyncio.Queue(core.limits.requests_in_flight)
    await _until_first_ends(
        _read(core, session, streams, replies),
        _write(replies, streams[1]),
        _drain_replies(core, replies),
        _rebound(core, session),
    )


async def _read(
    core: Core, session: Binding, streams: wire.Streams, replies: asyncio.Queue[PendingReply]
) -> None:
    while True:
        frame = await wire.receive(streams[0])
        if frame.kind == FrameKind.EVENTS:
            await _stream(core, frame.request, frame.body, streams)
            return
        await replies.put(_submit(core, session, frame))


async def _rebound(core: Core, session: Binding) -> None:
    """End the session when the core is rebound, even if it is idle or follows events."""
    await core.wait_rebound(session)
    raise BindingChanged


async def _drain_replies(core: Core, replies: asyncio.Queue[PendingReply]) -> None:
    """When the core stops, still send the replies that it has made."""
    await core.stopped.wait()
    async with asyncio.timeout(core.limits.drain_s):
        await replies.join()


def _submit(core: Core, session: Binding, frame: CoreFrame) -> PendingReply:
    if frame.kind not in REPLIES:
        raise MalformedFrame(f"no request has kind {frame.kind}")
    kind = FrameKind(frame.kind)
    try:
        return PendingReply(frame.request, REPLIES[kind], core.submit(kind, frame.body, session))
    except CoreBusy:
        return PendingReply(frame.request, FrameKind.BUSY, b"")
    except RequestDeclined as declined:
        return PendingReply(frame.request, FrameKind.REFUSED, wire.pack(declined.refusal))


async def _write(replies: asyncio.Queue[PendingReply], writer: ByteWriter) -> None:
    while True:
        request, kind, body = await replies.get()
        try:
            content = body if isinstance(body, bytes) else await body
        except RequestDeclined as declined:
            kind, content = FrameKind.REFUSED, wire.pack(declined.refusal)
        writer.write(wire.frame(kind, request, content))
        await writer.drain()
        replies.task_done()


async def _stream(core: Core, request: int, body: bytes, streams: wire.Streams) -> None:
    """Send events until the client disconnects. It may send no more on this connection."""
    if len(body) != wire.AFTER.size:
        raise MalformedFrame("EVENTS needs exactly one position")
    reader, writer = streams
    [after] = wire.AFTER.unpack(body)

    async def send() -> None:
        async for rows in events(core, after):
            writer.write(wire.frame(FrameKind.APPLIED, request, rows))
            await writer.drain()

    await _until_first_ends(send(), reader.readexactly(1))


async def _until_first_ends(*coroutines: Coroutine[None, None, object]) -> None:
    """Run all of them until one ends, then cancel the others."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
