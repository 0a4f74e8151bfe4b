"""A request whose body breaks off after its headers has done nothing when it is answered by 400."""

import asyncio

import pytest

from tests.service.rig import ALICE, Front, Play, token
from tidegate.core.kind import Transfer

BROKEN = b"Transfer-Encoding: chunked\r\n\r\nzz\r\nthis is no chunk\r\n"
LATE = (b"Transfer-Encoding: chunked\r\n\r\n", b"zz\r\nthis is no chunk\r\n")


async def raw(front: Front, *pieces: bytes) -> bytes:
    """Say exactly this, in these pieces, and return what is heard until the end."""
    base = front.client.base_url
    reader, writer = await asyncio.open_connection(base.host, base.port)
    for piece in pieces:
        writer.write(piece)
        await asyncio.sleep(0.2)  # Time enough to execute it, if it would be.
    heard = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    return heard


def head(method: str, path: str, who: str) -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {who}\r\n".encode()


@pytest.mark.parametrize("pieces", [(BROKEN,), LATE], ids=["at once", "later"])
def test_a_retry_with_a_broken_body_is_not_executed(play: Play, pieces: tuple[bytes, ...]) -> None:
    async def scene(front: Front) -> None:
        released: list[object] = []

        async def watched(transfers: list[Transfer]) -> None:
            released.extend(transfers)

        await front.desk("POST", "/halt", {"reason": "so that it rests"})
        await front.desk("POST", "/resume", {"reason": "go on"})
        await front.fund("FUNDING", "10")
        front.gate.engine.lanes["core"].stop()
        body = {"from": "FUNDING", "to": "SPOT", "asset": "USDT", "amount": "1"}
        made = await front.transfer(body, headers={"Prefer": "wait=0"})
        assert made.status == 202, made
        front.gate.store.release = watched  # type: ignore[method-assign, assignment]
        path = f"/api/v1/operator/transfers/{made.body['req_id']}/retry"
        first, *rest = pieces
        heard = await raw(front, head("POST", path, token("olga", "operator")) + first, *rest)
        assert heard.startswith(b"HTTP/1.1 400 "), heard
        assert released == [], "it was answered with 400 and executed"
        assert (await front.desk("POST", path.removeprefix("/api/v1/operator"))).status == 202
        assert len(released) == 1

    play(scene)


def test_a_body_that_breaks_off_is_not_executed(play: Play) -> None:
    """The client leaves in the middle: whatever was sent so far has done nothing."""

    async def scene(front: Front) -> None:
        await front.fund("FUNDING", "10")
        text = b'{"from":"FUNDING","to":"SPOT","asset":"USDT","amount":"1","cid":"c"}'
        length = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (len(text) + 1)
        base = front.client.base_url
        _, writer = await asyncio.open_connection(base.host, base.port)
        start = head("POST", "/api/v1/internal_transfer", token(str(ALICE), "user"))
        writer.write(start + length + text)
        await asyncio.sleep(0.2)
        writer.close()
        await asyncio.sleep(0.2)
        assert (await front.balances())["FUNDING", "USDT"] == "10.000000"

    play(scene)
