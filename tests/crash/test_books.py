"""The clients' books find violations: otherwise a run under faults would prove nothing."""

import asyncio
import json
import random
import time
from typing import Any

import httpx2
import pytest

from tests.crash.books import Books, ClientTransfer
from tests.crash.faults import Harmless, eventually

BODY = {"from": "FUNDING", "to": "SPOT", "asset": "USDT", "amount": "7", "cid": "n0"}


def books_after(*replies: dict[str, Any]) -> Books:
    """Books after one client got these replies about one transfer."""
    books = Books("http://nowhere", str, random.Random(1))
    books.transfers["n0"] = transfer = ClientTransfer(11, BODY, 0.0)
    for reply in replies:
        books.note(transfer, reply)
    return books


def test_an_end_is_recorded_once() -> None:
    pending, end = {"req_id": "a", "state": "PENDING"}, {"req_id": "a", "state": "COMMITTED"}
    books = books_after(pending, end, end)
    assert (books.violations, books.ended) == ([], 1)
    assert books.moved == {(11, "FUNDING"): -7, (11, "SPOT"): 7}


@pytest.mark.parametrize(
    ("second", "violation_text"),
    [
        ({"req_id": "b", "state": "COMMITTED"}, "became two transfers"),
        ({"req_id": "a", "state": "ROLLED_BACK"}, "was COMMITTED and is now ROLLED_BACK"),
        ({"code": "MALFORMED"}, "MALFORMED"),
    ],
)
def test_a_contradicting_reply_is_a_violation(second: dict[str, str], violation_text: str) -> None:
    books = books_after({"req_id": "a", "state": "COMMITTED"}, second)
    assert violation_text in books.violations[0]


def test_a_refused_transfer_moves_nothing() -> None:
    assert books_after({"req_id": "a", "state": "FAILED"}).moved == {}


def test_the_wait_of_an_open_transfer_counts_as_infinite() -> None:
    assert books_after({"req_id": "a", "state": "PENDING"}).waited_s(0.0) == float("inf")


@pytest.mark.parametrize(("status", "violation_text"), [(404, "404"), (202, "not ended in time")])
def test_a_wrong_status_and_a_missing_end_are_violations(status: int, violation_text: str) -> None:
    body = json.dumps({"req_id": "a", "state": "PENDING"})
    reply = f"HTTP/1.1 {status} Test\r\nConnection: close\r\n\r\n{body}".encode()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        writer.write(reply)
        writer.close()

    async def client() -> list[str]:
        books = books_after()
        books.deadline_s = time.monotonic() + 0.3
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            base = "http://127.0.0.1:{1}".format(*server.sockets[0].getsockname())
            async with httpx2.AsyncClient(base_url=base) as http:
                await books._finish(http, books.transfers["n0"])
        return books.violations

    [violation] = asyncio.run(client())
    assert violation_text in violation


def test_a_fault_without_effect_is_reported() -> None:
    with pytest.raises(Harmless, match="no commit"):
        asyncio.run(eventually(lambda: False, "no commit", within_s=0.1))
