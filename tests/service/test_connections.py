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
