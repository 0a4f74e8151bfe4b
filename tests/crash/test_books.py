"""The clients' books notice what must not be: else a run under faults would prove nothing."""

import asyncio
import json
import random
import time
from typing import Any

import httpx2
import pytest

from tests.crash.books import Books, Wish
from tests.crash.faults import Harmless, eventually

WISH = {"from": "FUNDING", "to": "SPOT", "asset": "USDT", "amount": "7", "cid": "n0"}


def told(*answers: dict[str, Any]) -> Books:
    """Books after one client was told these things about one transfer."""
    books = Books("http://nowhere", str, random.Random(1))
    books.wishes["n0"] = wish = Wish(11, WISH, 0.0)
    for said in answers:
        books.note(wish, said)
    return books


def test_what_was_told_is_written_down_once() -> None:
    pending, end = {"req_id": "a", "state": "PENDING"}, {"req_id": "a", "state": "COMMITTED"}
    books = told(pending, end, end)
    assert (books.violations, books.ended) == ([], 1)
    assert books.moved == {(11, "FUNDING"): -7, (11, "SPOT"): 7}


@pytest.mark.parametrize(
    ("second", "noticed"),
    [
        ({"req_id": "b", "state": "COMMITTED"}, "became two transfers"),
        ({"req_id": "a", "state": "ROLLED_BACK"}, "was COMMITTED, and is ROLLED_BACK"),
        ({"code": "MALFORMED"}, "MALFORMED"),
    ],
)
def test_what_was_told_otherwise_is_a_violation(second: dict[str, str], noticed: str) -> None:
    books = told({"req_id": "a", "state": "COMMITTED"}, second)
    assert noticed in books.violations[0]


def test_a_refused_transfer_moves_nothing() -> None:
    assert told({"req_id": "a", "state": "FAILED"}).moved == {}


def test_a_transfer_that_has_not_ended_has_waited_for_ever() -> None:
    assert told({"req_id": "a", "state": "PENDING"}).waited_s(0.0) == float("inf")


@pytest.mark.parametrize(("status", "noticed"), [(404, "404"), (202, "no end in time")])
def test_a_client_complains_of_a_wrong_answer_and_of_none(status: int, noticed: str) -> None:
    body = json.dumps({"req_id": "a", "state": "PENDING"})
    reply = f"HTTP/1.1 {status} Said\r\nConnection: close\r\n\r\n{body}".encode()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        writer.write(reply)
        writer.close()

    async def client() -> list[str]:
        books = told()
        books.deadline_s = time.monotonic() + 0.3
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            base = "http://127.0.0.1:{1}".format(*server.sockets[0].getsockname())
            async with httpx2.AsyncClient(base_url=base) as http:
                await books._fulfil(http, books.wishes["n0"])
        return books.violations

    [violation] = asyncio.run(client())
    assert noticed in violation


def test_a_fault_that_hurts_nothing_is_not_counted() -> None:
    with pytest.raises(Harmless, match="nobody commits"):
        asyncio.run(eventually(lambda: False, "nobody commits", within_s=0.1))
