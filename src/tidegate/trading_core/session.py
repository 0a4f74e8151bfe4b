"""One client's connection: a greeting, then requests, answered in the order they came.

A client that does not read its replies is soon not read from either: at most a bounded number
of its requests wait, and it holds up nobody else.
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
    """Serve one client until it leaves, misbehaves, or the core stops."""
    try:
        async with asyncio.timeout(core.limits.hello_s):
            session = await _greet(core, reader, writer)
        if session is not None:
            await _serve(core, session, (reader, writer))
    except MalformedFrame as broken:
        _refuse(writer, RefusalFrame(SessionRefusal.MALFORMED, f"MALFORMED: {broken}"))
    except BindingChanged as rebound:
        _refuse(writer, RefusalFrame(SessionRefusal.REBOUND, f"REBOUND: {rebound}"))
    except EventsGone as gone:
        _refuse(writer, RefusalFrame(SessionRefusal.EVENTS_GONE, f"EVENTS_GONE: {gone}"))
    except (*wire.LOST, TimeoutError, CoreStopped):
        pass  # There is nobody left to tell.
    finally:
        await part(writer, core.limits.farewell_s)


async def turn_away(core: Core, writer: ByteWriter) -> None:
    message = f"CROWDED: {core.limits.connections} connections are open, and no more are taken"
    _refuse(writer, RefusalFrame(SessionRefusal.CROWDED, message))
    await part(writer, core.limits.farewell_s)


async def part(writer: ByteWriter, farewell_s: float) -> None:
    """Let what was written go out, for a moment."""
    writer.close()
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(farewell_s):
            await writer.wait_closed()


def _refuse(writer: ByteWriter, refusal: RefusalFrame) -> None:
    writer.write(wire.frame(FrameKind.REFUSED, 0, wire.pack(refusal)))


async def _greet(core: Core, reader: ByteReader, writer: ByteWriter) -> Binding | None:
    """For whom the client greets, if it is welcome."""
    first = await wire.receive(reader)
    if first.kind != FrameKind.HELLO:
        raise MalformedFrame("the first frame must be a HELLO")
    hello = wire.unpack_hello(first.body)
    refusal = core.refuses(hello)
    if refusal is None:
        try:
            refusal = await core.meet(hello)
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
    await _first(
        _read(core, session, streams, replies),
        _write(replies, streams[1]),
        _farewell(core, replies),
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
    """End the session, also one that is idle or follows events, when the core is bound anew."""
    await core.rebound(session)
    raise BindingChanged


async def _farewell(core: Core, replies: asyncio.Queue[PendingReply]) -> None:
    """When the core stops, what it has answered still goes out."""
    await core.stopped.wait()
    async with asyncio.timeout(core.limits.farewell_s):
        await replies.join()


def _submit(core: Core, session: Binding, frame: CoreFrame) -> PendingReply:
    if frame.kind not in REPLIES:
        raise MalformedFrame(f"there is no request of kind {frame.kind}")
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
    """Send events until the client leaves. It has nothing more to say on this connection."""
    if len(body) != wire.AFTER.size:
        raise MalformedFrame("EVENTS names one position")
    reader, writer = streams
    [after] = wire.AFTER.unpack(body)

    async def send() -> None:
        async for rows in events(core, after):
            writer.write(wire.frame(FrameKind.APPLIED, request, rows))
            await writer.drain()

    await _first(send(), reader.readexactly(1))


async def _first(*work: Coroutine[None, None, object]) -> None:
    """Run all until one ends, then end the others."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
