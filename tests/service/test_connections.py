"""A client that drips its headers is not waited for, and holds nobody else up."""

import asyncio

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
