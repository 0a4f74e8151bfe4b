"""A reply that is a stream: each chunk is sent at once, and a broken stream has no end."""

import asyncio
from collections.abc import AsyncGenerator, Callable

import pytest
import uvloop

from tests.service.raw_client import CLOSED, Api, get, serving
from tidegate.service import connections
from tidegate.service.http import HttpReply, HttpRequest

WITHIN_S = 10.0


class Streaming(Api):
    """Sends what the test puts into the queue. None is the end, an exception breaks the stream."""

    def __init__(self) -> None:
        super().__init__()
        self.chunks: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        self.closed = asyncio.Event()

    async def __call__(self, request: HttpRequest) -> HttpReply:
        return HttpReply(200, b"", {"Content-Type": "text/event-stream"}, self._stream())

    async def _stream(self) -> AsyncGenerator[bytes, None]:
        try:
            while (chunk := await self.chunks.get()) is not None:
                if isinstance(chunk, Exception):
                    raise chunk
                yield chunk
        finally:
            self.closed.set()


def test_each_chunk_is_sent_at_once_and_the_stream_has_an_end() -> None:
    async def scenario() -> None:
        api = Streaming()
        async with serving(api) as (_, connect, _):
            client = await connect()
            client.send(get("/live"))
            head = await client.head()
            assert head.headers["transfer-encoding"] == "chunked"
            assert "content-length" not in head.headers
            for chunk in (b"one", b"", b"two and more"):
                api.chunks.put_nowait(chunk)
                if chunk:
                    assert await client.chunk() == chunk
            api.chunks.put_nowait(None)
            assert await client.rest() == b"0\r\n\r\n", "the last chunk, then the connection ends"
            assert api.closed.is_set()

    asyncio.run(scenario())


def test_a_stream_that_fails_has_no_last_chunk(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        api = Streaming()
        async with serving(api) as (_, connect, _):
            client = await connect()
            client.send(get("/live"))
            await client.head()
            api.chunks.put_nowait(ZeroDivisionError("by design"))
            assert await client.rest() == CLOSED

    asyncio.run(scenario())
    assert "request_failed" in caplog.text


def test_a_client_that_leaves_ends_its_stream() -> None:
    async def scenario() -> None:
        api = Streaming()
        async with serving(api) as (_, connect, _):
            client = await connect()
            client.send(get("/live"))
            await client.head()
            client.close()
            await asyncio.wait_for(api.closed.wait(), WITHIN_S)

    asyncio.run(scenario())


def test_a_client_that_does_not_read_ends_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "WRITE_S", 0.3)

    async def scenario() -> None:
        api = Streaming()
        async with serving(api) as (_, connect, _):
            client = await connect()
            client.send(get("/live"))
            for _ in range(100):
                api.chunks.put_nowait(b"x" * 1_000_000)
            await asyncio.wait_for(api.closed.wait(), WITHIN_S)
            assert api.chunks.qsize() > 0, "it is not read to its end for a client that waits"

    asyncio.run(scenario())


def test_a_stop_of_the_server_does_not_wait_for_a_stream() -> None:
    async def scenario() -> None:
        api = Streaming()
        async with asyncio.timeout(connections.SHUTDOWN_S / 2):
            async with serving(api) as (_, connect, stop):
                client = await connect()
                client.send(get("/live"))
                await client.head()
                stop()
                await api.closed.wait()

    asyncio.run(scenario())


def test_head_opens_no_stream() -> None:
    async def scenario() -> None:
        api = Streaming()
        async with serving(api) as (_, connect, _):
            client = await connect()
            client.send(get("/live").replace(b"GET", b"HEAD"))
            assert (await client.reply(empty=True)).status == 200

    asyncio.run(scenario())


class Slow(Streaming):
    """Takes its time before it returns the stream."""

    async def __call__(self, request: HttpRequest) -> HttpReply:
        await self.release.wait()
        return await super().__call__(request)


@pytest.mark.parametrize("loop", [uvloop.new_event_loop, asyncio.new_event_loop])
@pytest.mark.parametrize("leaves", [True, False], ids=["the client leaves", "the server stops"])
def test_a_stream_does_not_begin_when_its_connection_has_ended(
    loop: Callable[[], asyncio.AbstractEventLoop], *, leaves: bool
) -> None:
    """No task would end it: it would run for ever, for no reader."""

    async def scenario() -> None:
        api = Slow()
        began = asyncio.get_running_loop().time()
        async with serving(api) as (_, connect, stop):
            client = await connect()
            client.send(get("/live"))
            await asyncio.sleep(0.1)
            if leaves:
                client.close()
            else:
                stop()
            await asyncio.sleep(0.3)
            api.release.set()
            await asyncio.sleep(0.1)
            for _ in range(3):
                api.chunks.put_nowait(b"one")
            await asyncio.sleep(0.1)
            assert api.chunks.qsize() == 3, "nothing reads the stream"
        assert asyncio.get_running_loop().time() - began < connections.SHUTDOWN_S / 2

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(scenario())


def test_a_client_of_http_1_0_gets_no_chunks() -> None:
    async def scenario() -> None:
        api = Streaming()
        async with serving(api) as (_, connect, _):
            client = await connect()
            client.send(get("/live").replace(b"HTTP/1.1", b"HTTP/1.0"))
            head = await client.head()
            assert not {"transfer-encoding", "content-length"} & head.headers.keys()
            for chunk in (b"one", b"", b"two", None):
                api.chunks.put_nowait(chunk)
            assert await client.rest() == b"onetwo"

    asyncio.run(scenario())
