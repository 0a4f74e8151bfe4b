"""A lean client over HTTP/1.1: connections kept open, requests written by hand, one at a time."""

import asyncio
import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from bench.driving import DONE, REFUSED, Outcome, Window
from bench.spec import ASSET_CODE, DECIMALS, Result, Spec
from bench.traffic import Order, Traffic

HEAD_END, LENGTH = b"\r\n\r\n", b"content-length:"
CHUNKED, LAST_CHUNK = b"transfer-encoding: chunked", b"0\r\n\r\n"
RETRY_S = 0.1  # Who is turned away does not come back at once.
MADE, FAILED, OVERLOADED = (200, 201), 422, 503


class Item(msgspec.Struct):
    status: int


class Items(msgspec.Struct):
    results: list[Item]


_items = msgspec.json.Decoder(Items)


class Orders:
    """Requests as bytes, each of a random one of the users, with the user's token."""

    def __init__(self, spec: Spec) -> None:
        users = json.loads(Path(spec.users).read_text())
        host = urlsplit(spec.url).netloc
        self._batch = spec.batch
        self._traffic = Traffic(spec, [owner for owner, _ in users])
        self._heads = {
            owner: (
                f"POST {spec.path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n"
                "Content-Type: application/json\r\nPrefer: wait=10\r\n"
            )
            for owner, token in users
        }
        self._numbers = itertools.count()

    def next(self) -> bytes:
        orders = [self._traffic.order(next(self._numbers)) for _ in range(self._batch)]
        owner = orders[0].owner
        body = _body(orders[0]) if self._batch == 1 else _bodies(orders, owner)
        return f"{self._heads[owner]}Content-Length: {len(body)}\r\n\r\n{body}".encode()


def _body(order: Order) -> str:
    names = ("FUNDING", "SPOT") if order.inward else ("SPOT", "FUNDING")
    amount = f"{order.amount // 10**DECIMALS}.{order.amount % 10**DECIMALS:0{DECIMALS}d}"
    return (
        f'{{"from":"{names[0]}","to":"{names[1]}","asset":"{ASSET_CODE}",'
        f'"amount":"{amount}","cid":"{order.cid}","user_id":{order.owner}}}'
    )


def _bodies(orders: list[Order], owner: int) -> str:
    """A token is one user's, and so is all that is asked for with it."""
    return '{"transfers":[' + ",".join(_body(o._replace(owner=owner)) for o in orders) + "]}"


class Connection(asyncio.Protocol):
    """Sends the next request as soon as the last is answered, until the window closes."""

    def __init__(self, orders: Orders, window: Window, batch: int) -> None:
        self._orders, self._window, self._batch = orders, window, batch
        self._heard = b""
        self._started_s = 0.0
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over.done():
            self.over.set_exception(exc or ConnectionError("the server hung up"))

    def data_received(self, data: bytes) -> None:
        self._heard += data
        head, found, body = self._heard.partition(HEAD_END)
        if not found or not _whole(head, body):
            return
        self._heard = b""
        try:
            outcome = self._outcome(int(head[9:12]), body)
        except ValueError as fault:
            self.over.set_exception(fault)
            self._transport.close()
            return
        self._window.note(self._started_s, outcome)
        if outcome.overloaded:
            asyncio.get_running_loop().call_later(RETRY_S, self._send)
        else:
            self._send()

    def _send(self) -> None:
        if self._window.over:
            self.over.set_result(None)
            self._transport.close()
            return
        self._started_s = time.perf_counter()
        self._transport.write(self._orders.next())

    def _outcome(self, status: int, body: bytes) -> Outcome:
        if status == FAILED:
            return REFUSED
        if status not in MADE:
            raise ValueError(f"answered by {status}: {body[:200]!r}")
        return DONE if self._batch == 1 else _outcomes(body)


def _whole(head: bytes, body: bytes) -> bool:
    lower = head.lower()
    if CHUNKED in lower:
        return body.endswith(LAST_CHUNK)
    start = lower.index(LENGTH) + len(LENGTH)
    return len(body) >= int(lower[start:].split(b"\r\n", 1)[0])


def _outcomes(body: bytes) -> Outcome:
    statuses = [item.status for item in _items.decode(body).results]
    turned_away = statuses.count(OVERLOADED)
    refused = statuses.count(FAILED)
    made = sum(status in MADE for status in statuses)
    if turned_away + refused + made != len(statuses):
        raise ValueError(f"items answered by {sorted(set(statuses))}")
    return Outcome(made + refused, refused, turned_away)


async def run(spec: Spec) -> Result:
    address, loop = urlsplit(spec.url), asyncio.get_running_loop()
    orders, window = Orders(spec), Window(spec)
    assert address.hostname, spec.url
    assert address.port, spec.url
    begin: Callable[[], Connection] = lambda: Connection(orders, window, spec.batch)  # noqa: E731
    made = [
        await loop.create_connection(begin, address.hostname, address.port)
        for _ in range(spec.inflight)
    ]
    await asyncio.gather(*(connection.over for _, connection in made))
    return window.result()
