"""HTTP on a connection: requests split in any way, one reply to each, in order."""

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Coroutine

import pytest
import uvloop

import tidegate.service.connections
import tidegate.service.http
from tests.service.raw_client import CLOSED, LIMIT, Run, get, post, serving
from tidegate.service.http import HttpReply


@pytest.fixture(params=[uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def run(request: pytest.FixtureRequest) -> Run:
    def run(scenario: Callable[[], Coroutine[None, None, None]]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(scenario())

    return run


def test_a_request_may_arrive_byte_by_byte(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as (_, connect, _):
            client = await connect()
            for byte in post(5) + b"hello":
                client.send(bytes([byte]))
                await asyncio.sleep(0)
            reply = await client.reply()
            assert (reply.status, json.loads(reply.body)["bytes"]) == (200, 5)

    run(scenario)


def test_pipelined_requests_are_answered_one_by_one_in_order(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as (api, connect, _):
            client = await connect()
            client.send(get("/slow"), *[get(f"/{n}") for n in range(50)], post(3), b"abc")
            await asyncio.sleep(0.1)
            assert api.paths == ["/slow"], "the next request waits"
            api.release.set()
            bodies = [json.loads((await client.reply()).body) for _ in range(52)]
            assert [b["path"] for b in bodies[:-1]] == ["/slow", *(f"/{n}" for n in range(50))]
            assert (bodies[-1]["path"], bodies[-1]["bytes"]) == ("/post", 3)

    run(scenario)


def test_a_body_in_chunks_is_one_body(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as (_, connect, _):
            client = await connect()
            client.send(b"POST /post HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            for _ in range(3):
                client.send(b"4\r\nabcd\r\n")
                await asyncio.sleep(0.02)
            client.send(b"0\r\n\r\n")
            assert json.loads((await client.reply()).body)["bytes"] == 12

    run(scenario)


def test_trailers_after_a_body_are_not_headers(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as (_, connect, _):
            client = await connect()
            client.send(b"POST /post HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            client.send(b"1\r\na\r\n0\r\nAuthorization: Bearer stolen\r\n\r\n", get("/next"))
            replies = [json.loads((await client.reply()).body)["headers"] for _ in range(2)]
            assert replies == [["host", "transfer-encoding"], ["host"]]

    run(scenario)


def test_a_body_over_the_limit_is_refused_and_the_connection_stays_open(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as (_, connect, _):
            client = await connect()
            client.send(post(3 * LIMIT), b"x" * (LIMIT + 1))
            assert (await client.reply()).status == 413, "before the whole body has arrived"
            client.send(b"x" * (2 * LIMIT - 1), get("/next"))
            assert json.loads((await client.reply()).body)["path"] == "/next"

    run(scenario)


def test_a_body_that_the_route_does_not_read_is_discarded(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as (_, connect, _):
            client = await connect()
            length = 3 * tidegate.service.connections.MAX_AHEAD
            client.send(post(length).replace(b"/post", b"/closed"))
            assert (await client.reply()).body == b'"no"'
            client.send(b"x" * length, get("/next"))
            assert json.loads((await client.reply()).body)["path"] == "/next"

    run(scenario)


def test_a_long_body_that_the_route_reads_late_is_complete(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as (api, connect, _):
            client = await connect()
            length = tidegate.service.connections.MAX_AHEAD + 10_000
            client.send(post(length).replace(b"/post", b"/slow"), b"x" * length)
            await asyncio.sleep(0.1)
            api.release.set()
            assert json.loads((await client.reply()).body)["bytes"] == length

    run(scenario)


def test_a_body_that_arrives_too_slowly_times_out(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tidegate.service.http, "BODY_S", 0.2)

    async def scenario() -> None:
        async with serving() as (_, connect, _):
            client = await connect()
            client.send(post(10), b"x")
            reply = await client.reply()
            assert (reply.status, reply.body) == (400, b'"late"')

    run(scenario)


def test_expect_100_continue_is_answered_when_the_body_is_needed(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as (_, connect, _):
            client = await connect()
            client.send(post(3, "Expect: 100-continue"))
            assert (await client.reply()).status == 100
            client.send(b"abc")
            assert json.loads((await client.reply()).body)["bytes"] == 3
            client.send(post(3, "Expect: 100-continue").replace(b"/post", b"/closed"))
            assert (await client.reply()).status == 200, "no 100 if the body is not needed"

    run(scenario)


def test_a_reply_to_head_has_the_length_but_no_body(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as (_, connect, _):
            client = await connect()
            client.send(get("/large").replace(b"GET", b"HEAD"), get("/next"))
            head = await client.reply(empty=True)
            assert (head.status, head.headers["content-length"]) == (200, "1000000")
            assert json.loads((await client.reply()).body)["path"] == "/next"

    run(scenario)


@pytest.mark.parametrize(
    "last",
    [
        get("/last", "Connection: close"),
        b"GET /last HTTP/1.0\r\n\r\n",
        b"GET /last HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
        get("/last", "Connection: Upgrade", "Upgrade: websocket"),
        get("/last", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c"),
    ],
)
def test_after_the_last_request_the_connection_is_closed(run: Run, last: bytes) -> None:
    async def scenario() -> None:
        async with serving() as (_, connect, _):
            client = await connect()
            client.send(last)
            reply = await client.reply()
            assert (reply.status, reply.headers["connection"]) == (200, "close")
            assert json.loads(reply.body)["path"] == "/last"
            assert await client.rest() == CLOSED

    run(scenario)


def test_an_invalid_request_does_not_replace_the_reply_to_the_one_before(run: Run) -> None:
    """Otherwise the client would take the 400 for the reply to its first request."""

    async def scenario() -> None:
        async with serving() as (api, connect, _):
            client = await connect()
            client.send(get("/slow"), b"this is not a request\r\n\r\n")
            await asyncio.sleep(0.1)
            api.release.set()
            reply = await client.reply()
            assert (reply.status, reply.headers["connection"]) == (200, "close")
            assert json.loads(reply.body)["path"] == "/slow"
            assert await client.rest() == CLOSED

    run(scenario)


def test_an_invalid_chunked_body_is_refused_at_once(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as (_, connect, _):
            client = await connect()
            client.send(b"POST /post HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            client.send(b"4\r\nabcd\r\nno number\r\n")
            assert (await client.reply()).status == 400
            assert await client.rest() == CLOSED

    run(scenario)


def test_an_idle_connection_is_closed_after_a_while(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tidegate.service.connections, "KEEP_ALIVE_S", 0.2)

    async def scenario() -> None:
        async with serving() as (_, connect, _):
            client = await connect()
            for _ in range(3):
                client.send(get("/"))
                assert (await client.reply()).status == 200
                await asyncio.sleep(0.1)
            began_s = asyncio.get_running_loop().time()
            assert await client.rest() == CLOSED
            assert asyncio.get_running_loop().time() - began_s < 5

    run(scenario)


def test_a_slow_body_after_the_reply_ends_the_connection(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tidegate.service.connections, "HEADERS_S", 0.3)

    async def scenario() -> None:
        async with serving() as (_, connect, _):
            client = await connect()
            client.send(post(1_000).replace(b"/post", b"/closed"))
            assert (await client.reply()).body == b'"no"'

            async def send_slowly() -> None:
                for _ in range(100):
                    client.send(b"x")
                    await asyncio.sleep(0.05)

            sender = asyncio.ensure_future(send_slowly())
            began_s = asyncio.get_running_loop().time()
            # The kernel sends a reset if bytes arrive between the last read and the close.
            with contextlib.suppress(ConnectionResetError):
                assert await client.rest() == CLOSED
            assert asyncio.get_running_loop().time() - began_s < 3
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)

    run(scenario)


def test_a_slow_reply_does_not_time_out(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tidegate.service.connections, "HEADERS_S", 0.1)
    monkeypatch.setattr(tidegate.service.connections, "KEEP_ALIVE_S", 0.1)

    async def scenario() -> None:
        async with serving() as (api, connect, _):
            client = await connect()
            client.send(get("/slow"))
            await asyncio.sleep(0.4)
            api.release.set()
            assert (await client.reply()).status == 200
            assert await client.rest() == CLOSED

    run(scenario)


def test_no_request_is_served_while_the_client_does_not_read_the_last_reply(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as (api, connect, _):
            client = await connect()
            client.send(*[get("/large") for _ in range(200)])
            await asyncio.sleep(0.5)
            assert 0 < len(api.paths) < 50, "the next request waits until the last reply is read"
            for _ in range(200):
                assert len((await client.reply()).body) == 1_000_000
            assert len(api.paths) == 200

    run(scenario)


def test_an_exception_is_answered_with_500_and_logged(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with serving() as (_, connect, _):
            client = await connect()
            client.send(get("/bug"), get("/next"))
            reply = await client.reply()
            assert (reply.status, reply.body) == (500, b'"failed"')
            assert await client.rest() == CLOSED

    with caplog.at_level(logging.ERROR):
        run(scenario)
    assert "ZeroDivisionError: by design" in caplog.text


def test_a_client_that_disconnects_during_its_body_is_not_logged_as_a_bug(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with serving() as (api, connect, _):
            client = await connect()
            client.send(post(10), b"x")
            await asyncio.sleep(0.1)
            assert api.paths == ["/post"]
            client.close()
            await asyncio.sleep(0.1)

    with caplog.at_level(logging.WARNING):
        run(scenario)
    assert caplog.text == ""


def test_a_stopping_server_answers_running_requests_and_closes_idle_connections(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as (api, connect, stop):
            idle, busy = await connect(), await connect()
            idle.send(get("/"))
            assert (await idle.reply()).status == 200
            busy.send(get("/slow"))
            await asyncio.sleep(0.05)
            stop()
            assert await idle.rest() == CLOSED
            api.release.set()
            reply = await busy.reply()
            assert (reply.status, reply.headers["connection"]) == (200, "close")
            assert await busy.rest() == CLOSED

    run(scenario)


def test_a_reply_with_a_line_break_in_a_header_is_an_assertion_error() -> None:
    reply = HttpReply(200, b"", {"Location": "/a\r\nSet-Cookie: b"})
    with pytest.raises(AssertionError, match="contains a line break"):
        tidegate.service.connections.head_of(reply, reply.headers, ())
