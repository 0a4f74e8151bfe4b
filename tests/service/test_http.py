"""What is said on a connection: requests in any pieces, one reply to each, in order."""

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Coroutine

import pytest
import uvloop

import tidegate.service.connections
import tidegate.service.http
from tests.service.raw_client import CLOSED, LIMIT, Play, get, post, serving
from tidegate.service.http import HttpReply


@pytest.fixture(params=[uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def play(request: pytest.FixtureRequest) -> Play:
    def run(scene: Callable[[], Coroutine[None, None, None]]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(scene())

    return run


def test_a_request_may_come_byte_by_byte(play: Play) -> None:
    async def scene() -> None:
        async with serving() as (_, connect, _):
            client = await connect()
            for byte in post(5) + b"hello":
                client.send(bytes([byte]))
                await asyncio.sleep(0)
            said = await client.reply()
            assert (said.status, json.loads(said.body)["bytes"]) == (200, 5)

    play(scene)


def test_many_requests_in_one_piece_are_answered_one_by_one_in_order(play: Play) -> None:
    async def scene() -> None:
        async with serving() as (api, connect, _):
            client = await connect()
            client.send(get("/slow"), *[get(f"/{n}") for n in range(50)], post(3), b"abc")
            await asyncio.sleep(0.1)
            assert api.asked == ["/slow"], "the next waits for its turn"
            api.go_on.set()
            bodies = [json.loads((await client.reply()).body) for _ in range(52)]
            assert [b["path"] for b in bodies[:-1]] == ["/slow", *(f"/{n}" for n in range(50))]
            assert (bodies[-1]["path"], bodies[-1]["bytes"]) == ("/post", 3)

    play(scene)


def test_a_body_in_chunks_is_one_body(play: Play) -> None:
    async def scene() -> None:
        async with serving() as (_, connect, _):
            client = await connect()
            client.send(b"POST /post HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            for _ in range(3):
                client.send(b"4\r\nabcd\r\n")
                await asyncio.sleep(0.02)
            client.send(b"0\r\n\r\n")
            assert json.loads((await client.reply()).body)["bytes"] == 12

    play(scene)


def test_what_stands_behind_a_body_is_no_header(play: Play) -> None:
    async def scene() -> None:
        async with serving() as (_, connect, _):
            client = await connect()
            client.send(b"POST /post HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            client.send(b"1\r\na\r\n0\r\nAuthorization: Bearer stolen\r\n\r\n", get("/next"))
            told = [json.loads((await client.reply()).body)["headers"] for _ in range(2)]
            assert told == [["host", "transfer-encoding"], ["host"]]

    play(scene)


def test_a_body_over_the_limit_is_refused_and_the_connection_goes_on(play: Play) -> None:
    async def scene() -> None:
        async with serving() as (_, connect, _):
            client = await connect()
            client.send(post(3 * LIMIT), b"x" * (LIMIT + 1))
            assert (await client.reply()).status == 413, "before all of it has come"
            client.send(b"x" * (2 * LIMIT - 1), get("/next"))
            assert json.loads((await client.reply()).body)["path"] == "/next"

    play(scene)


def test_a_body_that_nobody_wants_is_thrown_away(play: Play) -> None:
    async def scene() -> None:
        async with serving() as (_, connect, _):
            client = await connect()
            length = 3 * tidegate.service.connections.MAX_AHEAD
            client.send(post(length).replace(b"/post", b"/closed"))
            assert (await client.reply()).body == b'"no"'
            client.send(b"x" * length, get("/next"))
            assert json.loads((await client.reply()).body)["path"] == "/next"

    play(scene)


def test_a_long_body_that_is_asked_for_late_comes_in_full(play: Play) -> None:
    async def scene() -> None:
        async with serving() as (api, connect, _):
            client = await connect()
            length = tidegate.service.connections.MAX_AHEAD + 10_000
            client.send(post(length).replace(b"/post", b"/slow"), b"x" * length)
            await asyncio.sleep(0.1)
            api.go_on.set()
            assert json.loads((await client.reply()).body)["bytes"] == length

    play(scene)


def test_a_body_that_drips_too_long_is_not_waited_for(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tidegate.service.http, "BODY_S", 0.2)

    async def scene() -> None:
        async with serving() as (_, connect, _):
            client = await connect()
            client.send(post(10), b"x")
            said = await client.reply()
            assert (said.status, said.body) == (400, b'"late"')

    play(scene)


def test_who_waits_for_leave_to_send_a_body_gets_it(play: Play) -> None:
    async def scene() -> None:
        async with serving() as (_, connect, _):
            client = await connect()
            client.send(post(3, "Expect: 100-continue"))
            assert (await client.reply()).status == 100
            client.send(b"abc")
            assert json.loads((await client.reply()).body)["bytes"] == 3
            client.send(post(3, "Expect: 100-continue").replace(b"/post", b"/closed"))
            assert (await client.reply()).status == 200, "no leave where none is needed"

    play(scene)


def test_a_head_has_the_length_of_the_body_and_no_body(play: Play) -> None:
    async def scene() -> None:
        async with serving() as (_, connect, _):
            client = await connect()
            client.send(get("/large").replace(b"GET", b"HEAD"), get("/next"))
            head = await client.reply(empty=True)
            assert (head.status, head.headers["content-length"]) == (200, "1000000")
            assert json.loads((await client.reply()).body)["path"] == "/next"

    play(scene)


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
def test_after_the_last_request_the_connection_is_closed(play: Play, last: bytes) -> None:
    async def scene() -> None:
        async with serving() as (_, connect, _):
            client = await connect()
            client.send(last)
            said = await client.reply()
            assert (said.status, said.headers["connection"]) == (200, "close")
            assert json.loads(said.body)["path"] == "/last"
            assert await client.rest() == CLOSED

    play(scene)


def test_what_is_no_request_is_not_the_answer_to_the_one_before(play: Play) -> None:
    """Or else whoever sent both would believe that the first was refused."""

    async def scene() -> None:
        async with serving() as (api, connect, _):
            client = await connect()
            client.send(get("/slow"), b"this is no request\r\n\r\n")
            await asyncio.sleep(0.1)
            api.go_on.set()
            said = await client.reply()
            assert (said.status, said.headers["connection"]) == (200, "close")
            assert json.loads(said.body)["path"] == "/slow"
            assert await client.rest() == CLOSED

    play(scene)


def test_a_body_that_is_none_is_refused_at_once(play: Play) -> None:
    async def scene() -> None:
        async with serving() as (_, connect, _):
            client = await connect()
            client.send(b"POST /post HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            client.send(b"4\r\nabcd\r\nno number\r\n")
            assert (await client.reply()).status == 400
            assert await client.rest() == CLOSED

    play(scene)


def test_a_quiet_connection_is_closed_after_a_while(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tidegate.service.connections, "KEEP_ALIVE_S", 0.2)

    async def scene() -> None:
        async with serving() as (_, connect, _):
            client = await connect()
            for _ in range(3):
                client.send(get("/"))
                assert (await client.reply()).status == 200
                await asyncio.sleep(0.1)
            began_s = asyncio.get_running_loop().time()
            assert await client.rest() == CLOSED
            assert asyncio.get_running_loop().time() - began_s < 5

    play(scene)


def test_a_body_that_drips_after_the_answer_ends_the_connection(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tidegate.service.connections, "HEADERS_S", 0.3)

    async def scene() -> None:
        async with serving() as (_, connect, _):
            client = await connect()
            client.send(post(1_000).replace(b"/post", b"/closed"))
            assert (await client.reply()).body == b'"no"'

            async def drip() -> None:
                for _ in range(100):
                    client.send(b"x")
                    await asyncio.sleep(0.05)

            dripping = asyncio.ensure_future(drip())
            began_s = asyncio.get_running_loop().time()
            # What drips in between the last read and the close makes the kernel say so by a reset.
            with contextlib.suppress(ConnectionResetError):
                assert await client.rest() == CLOSED
            assert asyncio.get_running_loop().time() - began_s < 3
            dripping.cancel()
            await asyncio.gather(dripping, return_exceptions=True)

    play(scene)


def test_what_takes_long_to_answer_is_waited_for(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tidegate.service.connections, "HEADERS_S", 0.1)
    monkeypatch.setattr(tidegate.service.connections, "KEEP_ALIVE_S", 0.1)

    async def scene() -> None:
        async with serving() as (api, connect, _):
            client = await connect()
            client.send(get("/slow"))
            await asyncio.sleep(0.4)
            api.go_on.set()
            assert (await client.reply()).status == 200
            assert await client.rest() == CLOSED

    play(scene)


def test_a_client_that_does_not_read_is_not_written_to_without_end(play: Play) -> None:
    async def scene() -> None:
        async with serving() as (api, connect, _):
            client = await connect()
            client.send(*[get("/large") for _ in range(200)])
            await asyncio.sleep(0.5)
            assert 0 < len(api.asked) < 50, "the next is not begun before the last is taken"
            for _ in range(200):
                assert len((await client.reply()).body) == 1_000_000
            assert len(api.asked) == 200

    play(scene)


def test_a_bug_of_ours_is_an_answer_and_a_line_in_the_log(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with serving() as (_, connect, _):
            client = await connect()
            client.send(get("/bug"), get("/next"))
            said = await client.reply()
            assert (said.status, said.body) == (500, b'"failed"')
            assert await client.rest() == CLOSED

    with caplog.at_level(logging.ERROR):
        play(scene)
    assert "ZeroDivisionError: by design" in caplog.text


def test_who_leaves_in_the_middle_of_a_body_is_no_bug(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with serving() as (api, connect, _):
            client = await connect()
            client.send(post(10), b"x")
            await asyncio.sleep(0.1)
            assert api.asked == ["/post"]
            client.leave()
            await asyncio.sleep(0.1)

    with caplog.at_level(logging.WARNING):
        play(scene)
    assert caplog.text == ""


def test_an_ending_server_answers_what_it_serves_and_closes_the_rest(play: Play) -> None:
    async def scene() -> None:
        async with serving() as (api, connect, stop):
            quiet, busy = await connect(), await connect()
            quiet.send(get("/"))
            assert (await quiet.reply()).status == 200
            busy.send(get("/slow"))
            await asyncio.sleep(0.05)
            stop()
            assert await quiet.rest() == CLOSED
            api.go_on.set()
            said = await busy.reply()
            assert (said.status, said.headers["connection"]) == (200, "close")
            assert await busy.rest() == CLOSED

    play(scene)


def test_a_reply_with_a_header_of_two_lines_is_our_bug_and_is_not_sent() -> None:
    said = HttpReply(200, b"", {"Location": "/a\r\nSet-Cookie: b"})
    with pytest.raises(AssertionError, match="several lines"):
        tidegate.service.connections.head_of(said, said.headers, ())
