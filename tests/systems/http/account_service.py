"""A small account service on real sockets, which can be made to fail in every possible way."""

import asyncio
import contextlib
import json
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias

PHRASE = "Whatever"  # Clients ignore the phrase after a status.
TAKING, GIVING = "/withdraw", "/deposit"
MAX_AMOUNT = 2**127

Fields: TypeAlias = dict[str, Any]


class Outcome(NamedTuple):
    """A reply of the service: a status and the members of its JSON body."""

    status: int
    fields: Fields


DONE = Outcome(200, {"success": True})


class Fault(StrEnum):
    """A fault of one request, before or after its effect."""

    SILENT_BEFORE = "no reply, before the effect"
    SILENT_AFTER = "no reply, after the effect"
    ERROR_BEFORE = "500, before the effect"
    ERROR_AFTER = "500, after the effect"
    PROXY_BEFORE = "the page of a proxy, before the effect"
    PROXY_AFTER = "the page of a proxy, after the effect"
    CUT_BEFORE = "closes the connection without a reply, before the effect"
    CUT_AFTER = "closes the connection in the middle of the reply, after the effect"
    HUGE_AFTER = "a reply that is too long, after the effect"
    LATE = "has its effect and its reply after the client's timeout"
    TWICE = "the network delivers the request twice"
    ANSWERS_TWICE = "delivered twice, and both replies arrive"
    LEAVE = "replies, closes the connection, and accepts no more connections"


class Canned(NamedTuple):
    """A fixed reply. The request has no effect."""

    status: int
    body: bytes
    headers: tuple[str, ...] = ()


class Gate(NamedTuple):
    """Holds a request back, before its effect, until the test opens the gate."""

    reached: asyncio.Event
    opened: asyncio.Event


Trouble: TypeAlias = Fault | Canned | Gate


class Received(NamedTuple):
    """One request as received."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    raw: bytes

    @property
    def fields(self) -> Fields:
        return dict(json.loads(self.body)) if self.body else {}


class Account(NamedTuple):
    """The user, the account and the asset, as named in the requests."""

    user_id: int
    account: str
    asset: str


@dataclass(frozen=True)
class Operation:
    """The record that the service stores under a key."""

    request: Fields | None  # None: a tombstone, for a request that was never received.
    outcome: Outcome
    delta: int = 0
    undone: bool = False


@dataclass
class Bank:
    """The accounts, and the operations by their keys. If sticky, it also stores refusals."""

    sticky: bool
    balances: dict[Account, int] = field(default_factory=lambda: defaultdict(int))
    frozen: set[Account] = field(default_factory=set)
    refunds_frozen: bool = False  # A frozen account accepts refunds.
    operations: dict[str, Operation] = field(default_factory=dict)

    def carry_out(self, path: str, request: Fields) -> Outcome:
        """Carry out one request, unless its key is known."""
        known = self.operations.get(request["req_id"])
        if known is not None and known.request not in (None, request):
            return Outcome(409, {"error": "the key was used for another request"})
        if known is not None:
            return known.outcome
        match path:
            case "/rollback":
                return self._roll_back(request)
            case "/commit":
                return self._commit(request)
            case _:
                return self._move(request, -1 if path == TAKING else 1)

    def find(self, key: str) -> Outcome:
        known = self.operations.get(key)
        return Outcome(404, {"error": "Invalid user"}) if known is None else known.outcome

    def _move(self, request: Fields, sign: int) -> Outcome:
        account = _account(request)
        delta = sign * int(request["amount"])
        if not 0 < abs(delta) < MAX_AMOUNT:
            return self._refuse(request, "INVALID_AMOUNT")
        if account in self.frozen:
            return self._refuse(request, "ACCOUNT_FROZEN")
        if self.balances[account] + delta < 0:
            return self._refuse(request, "INSUFFICIENT_BALANCE")
        return self._store(request, DONE, delta)

    def _commit(self, request: Fields) -> Outcome:
        held = self.operations.get(request["undoes"])
        if held is None or held.delta == 0 or held.undone:
            return Outcome(422, {"error": "UNDO_UNFOUNDED"})
        return self._store(request, DONE, 0)

    def _roll_back(self, request: Fields) -> Outcome:
        key = request["undoes"]
        known = self.operations.get(key)
        done = known is not None and known.delta != 0
        if request.get("void") and done:
            return Outcome(422, {"error": "ALREADY_DONE"})
        if request.get("expect_done") and not done:
            return Outcome(422, {"error": "UNDO_UNFOUNDED"})
        if _account(request) in self.frozen and done and not self.refunds_frozen:
            return self._refuse(request, "ACCOUNT_FROZEN")
        original = known or Operation(None, DONE)
        tombstone = Outcome(422, {"error": "UNDONE"})
        self.operations[key] = replace(original, outcome=tombstone, undone=True)
        return self._store(request, DONE, 0 if original.undone else -original.delta)

    def _refuse(self, request: Fields, reason: str) -> Outcome:
        refusal = Outcome(422, {"error": reason})
        return self._store(request, refusal, 0) if self.sticky else refusal

    def _store(self, request: Fields, outcome: Outcome, delta: int) -> Outcome:
        self.balances[_account(request)] += delta
        self.operations[request["req_id"]] = Operation(request, outcome, delta)
        return outcome


@dataclass
class AccountService:
    """The bank on a socket. Each trouble applies to one request to its path, in order."""

    bank: Bank
    port: int
    late_s: float = 0.0
    delay_s: float = 0.0
    names_key: bool = False
    connections: int = 0
    received: list[Received] = field(default_factory=list)
    busy: int = 0
    busiest: int = 0
    troubles: dict[str, deque[Trouble]] = field(default_factory=lambda: defaultdict(deque))
    stop_listening: Callable[[], None] = lambda: None
    _request_ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def meet(self, path: str, *troubles: Trouble) -> None:
        self.troubles[path].extend(troubles)

    def requests_to(self, path: str) -> list[Received]:
        return [request for request in self.received if request.path == path]

    async def settled(self) -> None:
        """Wait until no request is running, late ones included."""
        while self.busy:
            self._request_ended.clear()
            await self._request_ended.wait()

    async def redeliver(self, request: Received) -> bytes:
        """Send the same bytes again, as a network that kept a copy of the request."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(request.raw)
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(_length(head))
        await _close(writer)
        return body

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await self._serve_one(await _receive(reader), writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # The client closed the connection first.
        finally:
            await _close(writer)

    async def _serve_one(self, request: Received, writer: asyncio.StreamWriter) -> bool:
        self.received.append(request)
        self.busy += 1
        self.busiest = max(self.busiest, self.busy)
        try:
            return await self._answer(request, writer)
        finally:
            self.busy -= 1
            self._request_ended.set()

    async def _answer(self, request: Received, writer: asyncio.StreamWriter) -> bool:
        """Answer one request, with its fault if it has one. False: close the connection."""
        waiting = self.troubles[request.path]
        match waiting.popleft() if waiting else None:
            case Canned() as canned:
                writer.write(_response(canned))
            case Gate() as gate:
                gate.reached.set()
                await gate.opened.wait()
                writer.write(self._carry_out(request))
            case Fault() as fault:
                return await self._fail(fault, request, writer)
            case None:
                await asyncio.sleep(self.delay_s)
                writer.write(self._carry_out(request))
        await writer.drain()
        return True

    async def _fail(self, fault: Fault, request: Received, writer: asyncio.StreamWriter) -> bool:
        if fault is Fault.LATE:
            await asyncio.sleep(self.late_s)
        answer = b""
        if not fault.name.endswith("_BEFORE"):
            answer = self._carry_out(request)
        match fault:
            case Fault.TWICE:
                answer = self._carry_out(request)
            case Fault.ANSWERS_TWICE:
                answer += self._carry_out(request)
            case Fault.ERROR_BEFORE | Fault.ERROR_AFTER:
                answer = _response(Canned(500, b'{"error": "Insufficient funds"}'))
            case Fault.PROXY_BEFORE | Fault.PROXY_AFTER:
                answer = _response(Canned(200, b"<html>Insufficient funds</html>"))
            case Fault.CUT_AFTER:
                answer = answer[:-3]
            case Fault.HUGE_AFTER:
                answer = _response(Canned(200, b'{"success": true}' + b" " * 100_000))
            case Fault.LEAVE:
                self.stop_listening()
                answer = answer.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
            case _:
                pass
        if fault in (Fault.SILENT_BEFORE, Fault.SILENT_AFTER):
            return True
        writer.write(answer)
        await writer.drain()
        return fault not in (Fault.CUT_BEFORE, Fault.CUT_AFTER, Fault.LEAVE)

    def _carry_out(self, request: Received) -> bytes:
        if request.method == "GET":
            outcome = self.bank.find(request.path.rpartition("/")[2])
        else:
            outcome = self.bank.carry_out(request.path, request.fields)
        key = {"req_id": request.headers["idempotency-key"]} if self.names_key else {}
        return _response(Canned(outcome.status, json.dumps(outcome.fields | key).encode()))


@contextlib.asynccontextmanager
async def account_service(*, sticky: bool) -> AsyncIterator[AccountService]:
    """A running service. All its connections are closed when the block ends."""
    connections: set[asyncio.Task[None]] = set()
    service = AccountService(Bank(sticky), port=0)

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(asyncio.create_task(service.serve(reader, writer)))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    service.port = server.sockets[0].getsockname()[1]
    service.stop_listening = server.close
    try:
        yield service
    finally:
        server.close()
        for task in connections:
            task.cancel()
        results = await asyncio.gather(*connections, return_exceptions=True)
        await server.wait_closed()
    # A bug in this service must not look like a planned fault.
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
            raise result


def _account(request: Fields) -> Account:
    return Account(request["user_id"], request["account"], request["asset"])


async def _receive(reader: asyncio.StreamReader) -> Received:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("ascii").rstrip().split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): text for name, _, text in (line.partition(": ") for line in lines)}
    body = await reader.readexactly(_length(head))
    return Received(method, path, headers, body, head + body)


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        name, _, text = line.partition(b":")
        if name == b"content-length":
            return int(text)
    return 0


def _response(canned: Canned) -> bytes:
    lines = [
        f"HTTP/1.1 {canned.status} {PHRASE}",
        f"Content-Length: {len(canned.body)}",
        *canned.headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + canned.body


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
