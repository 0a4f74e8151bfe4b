"""A request with a broken body is answered with 400 and has changed nothing."""

import asyncio

import pytest

from tests.service.rig import ALICE, ApiClient, Run, token
from tidegate.core.kind import Transfer

BROKEN = b"Transfer-Encoding: chunked\r\n\r\nzz\r\nthis is not a chunk\r\n"
LATE = (b"Transfer-Encoding: chunked\r\n\r\n", b"zz\r\nthis is not a chunk\r\n")


async def raw(api: ApiClient, *pieces: bytes) -> bytes:
    """Send these bytes piece by piece and return everything received until the end."""
    base = api.client.base_url
    reader, writer = await asyncio.open_connection(base.host, base.port)
    for piece in pieces:
        writer.write(piece)
        await asyncio.sleep(0.2)  # Enough time to execute the request by mistake.
    received = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    return received


def head(method: str, path: str, bearer: str) -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {bearer}\r\n".encode()


@pytest.mark.parametrize("pieces", [(BROKEN,), LATE], ids=["at once", "later"])
def test_a_retry_with_a_broken_body_is_not_executed(run: Run, pieces: tuple[bytes, ...]) -> None:
    async def scenario(api: ApiClient) -> None:
        released: list[object] = []

        async def watched(transfers: list[Transfer]) -> None:
            released.extend(transfers)

        await api.operator("POST", "/halt", {"reason": "a test"})
        await api.operator("POST", "/resume", {"reason": "the test is over"})
        await api.fund("FUNDING", "10")
        api.gate.engine.lanes["core"].stop()
        body = {"from": "FUNDING", "to": "SPOT", "asset": "USDT", "amount": "1"}
        created = await api.transfer(body, headers={"Prefer": "wait=0"})
        assert created.status == 202, created
        api.gate.store.release = watched  # type: ignore[method-assign, assignment]
        path = f"/api/v1/operator/transfers/{created.body['req_id']}/retry"
        first, *rest = pieces
        received = await raw(api, head("POST", path, token("olga", "operator")) + first, *rest)
        assert received.startswith(b"HTTP/1.1 400 "), received
        assert released == [], "the request was executed although the reply is 400"
        assert (await api.operator("POST", path.removeprefix("/api/v1/operator"))).status == 202
        assert len(released) == 1

    run(scenario)


def test_a_request_with_an_incomplete_body_is_not_executed(run: Run) -> None:
    """The client disconnects before the end of its body."""

    async def scenario(api: ApiClient) -> None:
        await api.fund("FUNDING", "10")
        text = b'{"from":"FUNDING","to":"SPOT","asset":"USDT","amount":"1","cid":"c"}'
        length = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (len(text) + 1)
        base = api.client.base_url
        _, writer = await asyncio.open_connection(base.host, base.port)
        start = head("POST", "/api/v1/internal_transfer", token(str(ALICE), "user"))
        writer.write(start + length + text)
        await asyncio.sleep(0.2)
        writer.close()
        await asyncio.sleep(0.2)
        assert (await api.balances())["FUNDING", "USDT"] == "10.000000"

    run(scenario)
