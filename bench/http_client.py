"""A lean client over HTTP/1.1: connections kept open, requests written by hand, one at a time."""

import itertools
import json
import select
import socket
import time
from collections import deque
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from bench.driving import DONE, REFUSED, Outcome, Window
from bench.spec import ASSET_CODE, DECIMALS, Result, Spec
from bench.traffic import Order, Traffic

HEAD_END, LENGTH = b"\r\n\r\n", b"content-length:"
CHUNKED, LAST_CHUNK = b"transfer-encoding: chunked", b"0\r\n\r\n"
CHUNK = 256 * 1024
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
        self.batch = spec.batch
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
        orders = [self._traffic.order(next(self._numbers)) for _ in range(self.batch)]
        owner = orders[0].owner
        body = _body(orders[0]) if self.batch == 1 else _bodies(orders, owner)
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


class Connection:
    """Asks for the next as soon as the last is answered, until the window closes."""

    def __init__(self, address: tuple[str, int], orders: Orders, window: Window) -> None:
        self._orders, self._window = orders, window
        self._heard = b""
        self._started_s = 0.0
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self) -> None:
        self._started_s = time.perf_counter()
        self.socket.sendall(self._orders.next())

    def hear(self) -> Outcome | None:
        """What came of it, once the answer is here in full."""
        chunk = self.socket.recv(CHUNK)
        if not chunk:
            raise ConnectionError("the server hung up")
        self._heard += chunk
        head, found, body = self._heard.partition(HEAD_END)
        if not found or not _whole(head, body):
            return None
        self._heard = b""
        outcome = self._outcome(int(head[9:12]), body)
        self._window.note(self._started_s, outcome)
        return outcome

    def _outcome(self, status: int, body: bytes) -> Outcome:
        if status == FAILED:
            return REFUSED
        if status not in MADE:
            raise ValueError(f"answered by {status}: {body[:200]!r}")
        return DONE if self._orders.batch == 1 else _outcomes(body)


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


class Crowd:
    """All connections, watched by one poll: an event loop would cost more than what it asks for."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._open: dict[int, Connection] = {}
        self._turned_away: deque[tuple[float, Connection]] = deque()
        self._poll = select.epoll()

    def join(self, connection: Connection) -> None:
        """One more. It does not wait for others, nor those who are here already for it."""
        number = connection.socket.fileno()
        self._open[number] = connection
        self._poll.register(number, select.EPOLLIN)
        self._go_on(connection)
        self._hear(0.0)

    def drive(self) -> None:
        while self._open:
            self._hear(RETRY_S)

    def _hear(self, wait_s: float) -> None:
        for number, _ in self._poll.poll(wait_s):
            connection = self._open[number]
            outcome = connection.hear()
            if outcome is not None and outcome.overloaded:
                self._turned_away.append((time.perf_counter() + RETRY_S, connection))
            elif outcome is not None:
                self._go_on(connection)
        while self._turned_away and self._turned_away[0][0] <= time.perf_counter():
            self._go_on(self._turned_away.popleft()[1])

    def _go_on(self, connection: Connection) -> None:
        if self._window.over:
            del self._open[connection.socket.fileno()]
            connection.socket.close()
        else:
            connection.ask()


async def run(spec: Spec) -> Result:
    address = urlsplit(spec.url)
    assert address.hostname, spec.url
    assert address.port, spec.url
    place, orders, window = (address.hostname, address.port), Orders(spec), Window(spec)
    crowd = Crowd(window)
    for _ in range(spec.inflight):
        crowd.join(Connection(place, orders, window))
    crowd.drive()  # Nobody else uses the loop that it holds up.
    return window.result()
