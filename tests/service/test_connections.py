"""A client that drips its headers is not waited for, and holds nobody else up."""

import asyncio
import json

import pytest

import tidegate.service.connections
from tests.service.rig import Front, Play


@pytest.mark.parametrize("said", [b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: "])
def test_a_request_that_does_not_come_in_time_is_given_up(
    play: Play, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(tidegate.service.connections, "HEADERS_S", 0.3)

    async def scene(front: Front) -> None:
        base = front.client.base_url
        reader, writer = await asyncio.open_connection(base.host, base.port)
        writer.write(said)
        heard = await asyncio.wait_for(reader.read(), 5)
        assert heard == b"", "closed without an answer"
        writer.close()
        assert (await front.call("GET", "/healthz")).status == 200

    play(scene)


def test_a_connection_that_is_used_stays_open(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tidegate.service.connections, "HEADERS_S", 0.2)

    async def scene(front: Front) -> None:
        base = front.client.base_url
        reader, writer = await asyncio.open_connection(base.host, base.port)
        for _ in range(3):
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            head = await asyncio.wait_for(reader.readuntil(b'{"status":"ok"}'), 5)
            assert head.startswith(b"HTTP/1.1 200")
            await asyncio.sleep(0.3)
        writer.close()

    play(scene)


def test_a_connection_too_many_is_told_so_and_closed(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(front: Front) -> None:
        base = front.client.base_url
        assert (await front.call("GET", "/healthz")).status == 200  # Over a connection that stays.
        kept = [await asyncio.open_connection(base.host, base.port) for _ in range(2)]
        monkeypatch.setattr(tidegate.service.connections, "MAX_CONNECTIONS", 3)
        reader, writer = await asyncio.open_connection(base.host, base.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        head, _, body = (await asyncio.wait_for(reader.read(), 5)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"content-type: application/problem+json" in head.lower()
        assert b"retry-after: 1" in head.lower()
        said = json.loads(body)
        assert (said["code"], said["retryable"]) == ("OVERLOADED", True)
        writer.close()
        for _, other in kept:
            other.close()
        assert (await front.call("GET", "/healthz")).status == 200, "who was in goes on"

    play(scene)


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nX-Long: " + b"x" * 40_000,
        b"".join([b"GET / HTTP/1.1\r\n", *(b"X-%d: y\r\n" % n for n in range(4_000))]),
        b"this is no request\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: minus one\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
    ],
)
def test_what_is_no_request_is_a_problem_and_the_end(play: Play, said: bytes) -> None:
    async def scene(front: Front) -> None:
        base = front.client.base_url
        reader, writer = await asyncio.open_connection(base.host, base.port)
        writer.write(said)
        head, _, body = (await asyncio.wait_for(reader.read(), 5)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 "), head
        assert b"application/problem+json" in head
        assert json.loads(body)["code"] == "INVALID_REQUEST"
        writer.close()
        assert (await front.call("GET", "/healthz")).status == 200

    play(scene)


def test_a_large_body_is_no_long_header(play: Play) -> None:
    """What comes in one piece with its headers, or after them, is not counted as headers."""

    async def scene(front: Front) -> None:
        base = front.client.base_url
        for pause in (0.0, 0.1):
            reader, writer = await asyncio.open_connection(base.host, base.port)
            head = (
                b"POST /api/v1/internal_transfers HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
            )
            writer.write(head % 900_000)
            await asyncio.sleep(pause)
            writer.write(b" " * 900_000)
            said = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
            assert said.startswith(b"HTTP/1.1 401 "), said
            writer.close()

    play(scene)
