"""A client with slow or invalid headers times out and does not delay other clients."""

import asyncio
import json

import pytest

import tidegate.service.connections
from tests.service.rig import ApiClient, Run


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: "])
def test_a_request_that_does_not_arrive_in_time_is_closed(
    run: Run, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(tidegate.service.connections, "HEADERS_S", 0.3)

    async def scenario(api: ApiClient) -> None:
        base = api.client.base_url
        reader, writer = await asyncio.open_connection(base.host, base.port)
        writer.write(sent)
        received = await asyncio.wait_for(reader.read(), 5)
        assert received == b"", "closed without a reply"
        writer.close()
        assert (await api.call("GET", "/healthz")).status == 200

    run(scenario)


def test_a_connection_that_is_used_stays_open(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tidegate.service.connections, "HEADERS_S", 0.2)

    async def scenario(api: ApiClient) -> None:
        base = api.client.base_url
        reader, writer = await asyncio.open_connection(base.host, base.port)
        for _ in range(3):
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            head = await asyncio.wait_for(reader.readuntil(b'{"status":"ok"}'), 5)
            assert head.startswith(b"HTTP/1.1 200")
            await asyncio.sleep(0.3)
        writer.close()

    run(scenario)


def test_a_connection_over_the_limit_gets_503_and_is_closed(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(api: ApiClient) -> None:
        base = api.client.base_url
        assert (await api.call("GET", "/healthz")).status == 200  # Its connection stays open.
        others = [await asyncio.open_connection(base.host, base.port) for _ in range(2)]
        monkeypatch.setattr(tidegate.service.connections, "MAX_CONNECTIONS", 3)
        reader, writer = await asyncio.open_connection(base.host, base.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        head, _, body = (await asyncio.wait_for(reader.read(), 5)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"content-type: application/problem+json" in head.lower()
        assert b"retry-after: 1" in head.lower()
        reply = json.loads(body)
        assert (reply["code"], reply["retryable"]) == ("OVERLOADED", True)
        writer.close()
        for _, other in others:
            other.close()
        assert (await api.call("GET", "/healthz")).status == 200, "the first connection still works"

    run(scenario)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nX-Long: " + b"x" * 40_000,
        b"".join([b"GET / HTTP/1.1\r\n", *(b"X-%d: y\r\n" % n for n in range(4_000))]),
        b"this is not a request\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: minus one\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
    ],
)
def test_an_invalid_request_gets_a_problem_and_is_closed(run: Run, sent: bytes) -> None:
    async def scenario(api: ApiClient) -> None:
        base = api.client.base_url
        reader, writer = await asyncio.open_connection(base.host, base.port)
        writer.write(sent)
        head, _, body = (await asyncio.wait_for(reader.read(), 5)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 "), head
        assert b"application/problem+json" in head
        assert json.loads(body)["code"] == "INVALID_REQUEST"
        writer.close()
        assert (await api.call("GET", "/healthz")).status == 200

    run(scenario)


def test_a_large_body_does_not_count_as_headers(run: Run) -> None:
    """A body does not count whether it arrives together with its headers or after them."""

    async def scenario(api: ApiClient) -> None:
        base = api.client.base_url
        for pause in (0.0, 0.1):
            reader, writer = await asyncio.open_connection(base.host, base.port)
            head = (
                b"POST /api/v1/internal_transfers HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
            )
            writer.write(head % 900_000)
            await asyncio.sleep(pause)
            writer.write(b" " * 900_000)
            reply = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
            assert reply.startswith(b"HTTP/1.1 401 "), reply
            writer.close()

    run(scenario)
