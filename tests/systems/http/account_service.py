"""A little account service on real sockets, with a switch for every way in which one can fail."""

import asyncio
import contextlib
import json
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias

PHRASE = "Whatever"  # Nobody reads the phrase beside a status.
TAKING, GIVING = "/withdraw", "/deposit"
MAX_AMOUNT = 2**127

Fields: TypeAlias = dict[str, Any]


class Outcome(NamedTuple):
    """What the service has to say: a status and the members of its JSON body."""

    status: int
    fields: Fields


DONE = Outcome(200, {"success": True})


class Fault(StrEnum):
    """What goes wrong with one request, and whether before or after it took effect."""

    SILENT_BEFORE = "never answers, nothing happened"
    SILENT_AFTER = "never answers, it happened"
    ERROR_BEFORE = "500, nothing happened"
    ERROR_AFTER = "500, it happened"
    PROXY_BEFORE = "a proxy's page, nothing happened"
    PROXY_AFTER = "a proxy's page, it happened"
    CUT_BEFORE = "hangs up instead of an answer, nothing happened"
    CUT_AFTER = "hangs up in the middle of the answer, it happened"
    HUGE_AFTER = "an endless answer, it happened"
    LATE = "happens and answers when nobody waits any more"
    TWICE = "the network delivers the request twice"
    ANSWERS_TWICE = "delivered twice, and both answers come back"
    LEAVE = "answers, hangs up, and takes no more connections"


class Canned(NamedTuple):
    """An answer word for word. Nothing happens."""

    status: int
    body: bytes
    headers: tuple[str, ...] = ()


class Gate(NamedTuple):
    """Holds a request back, before anything happens, until the test opens it."""

    reached: asyncio.Event
    opened: asyncio.Event


Trouble: TypeAlias = Fault | Canned | Gate


class Received(NamedTuple):
    """One request as it came in."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    raw: bytes

    @property
    def fields(self) -> Fields:
        return dict(json.loads(self.body)) if self.body else {}


class Account(NamedTuple):
    """Whose money: the user, the account and the asset, as the requests name them."""

    user_id: int
    account: str
    asset: str


@dataclass(frozen=True)
class Operation:
    """What the service keeps under a key."""

    asked: Fields | None  # None: a tombstone, for a request that never came.
    outcome: Outcome
    delta: int = 0
    undone: bool = False


@dataclass
class Bank:
    """The accounts, and the operations by their keys. Sticky: it keeps its refusals, too."""

    sticky: bool
    balances: dict[Account, int] = field(default_factory=lambda: defaultdict(int))
    frozen: set[Account] = field(default_factory=set)
    refunds_frozen: bool = False  # A frozen account takes its refunds.
    operations: dict[str, Operation] = field(default_factory=dict)

    def take(self, path: str, asked: Fields) -> Outcome:
        """Carry out one request, unless its key says that it has been."""
        known = self.operations.get(asked["req_id"])
        if known is not None and known.asked not in (None, asked):
            return Outcome(409, {"error": "the key was used for something else"})
        if known is not None:
            return known.outcome
        match path:
            case "/rollback":
                return self._roll_back(asked)
            case "/commit":
                return self._commit(asked)
            case _:
                return self._move(asked, -1 if path == TAKING else 1)

    def look(self, key: str) -> Outcome:
        known = self.operations.get(key)
        return Outcome(404, {"error": "Invalid user"}) if known is None else known.outcome

    def _move(self, asked: Fields, sign: int) -> Outcome:
        account = _account(asked)
        delta = sign * int(asked["amount"])
        if not 0 < abs(delta) < MAX_AMOUNT:
            return self._refuse(asked, "INVALID_AMOUNT")
        if account in self.frozen:
            return self._refuse(asked, "ACCOUNT_FROZEN")
        if self.balances[account] + delta < 0:
            return self._refuse(asked, "INSUFFICIENT_BALANCE")
        return self._keep(asked, DONE, delta)

    def _commit(self, asked: Fields) -> Outcome:
        held = self.operations.get(asked["undoes"])
        if held is None or held.delta == 0 or held.undone:
            return Outcome(422, {"error": "UNDO_UNFOUNDED"})
        return self._keep(asked, DONE, 0)

    def _roll_back(self, asked: Fields) -> Outcome:
        key = asked["undoes"]
        known = self.operations.get(key)
        happened = known is not None and known.delta != 0
        if asked.get("void") and happened:
            return Outcome(422, {"error": "ALREADY_DONE"})
        if asked.get("expect_done") and not happened:
            return Outcome(422, {"error": "UNDO_UNFOUNDED"})
        if _account(asked) in self.frozen and happened and not self.refunds_frozen:
            return self._refuse(asked, "ACCOUNT_FROZEN")
        undone = known or Operation(None, DONE)
        tombstone = Outcome(422, {"error": "UNDONE"})
        self.operations[key] = replace(undone, outcome=tombstone, undone=True)
        return self._keep(asked, DONE, 0 if undone.undone else -undone.delta)

    def _refuse(self, asked: Fields, reason: str) -> Outcome:
        refusal = Outcome(422, {"error": reason})
        return self._keep(asked, refusal, 0) if self.sticky else refusal

    def _keep(self, asked: Fields, outcome: Outcome, delta: int) -> Outcome:
        self.balances[_account(asked)] += delta
        self.operations[asked["req_id"]] = Operation(asked, outcome, delta)
        return outcome


@dataclass
class AccountService:
    """The bank behind a socket. Each trouble meets one request to its path, in order."""

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
    _after: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def meet(self, path: str, *troubles: Trouble) -> None:
        self.troubles[path].extend(troubles)

    def requests_to(self, path: str) -> list[Received]:
        return [request for request in self.received if request.path == path]

    async def settled(self) -> None:
        """Wait until no request is on its way any more, late ones included."""
        while self.busy:
            self._after.clear()
            await self._after.wait()

    async def redeliver(self, request: Received) -> bytes:
        """What a network does that kept a copy of a request: send its very bytes again."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(request.raw)
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(_length(head))
        await _hang_up(writer)
        return body

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await self._serve_one(await _receive(reader), writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # They hung up first.
        finally:
            await _hang_up(writer)

    async def _serve_one(self, request: Received, writer: asyncio.StreamWriter) -> bool:
        self.received.append(request)
        self.busy += 1
        self.busiest = max(self.busiest, self.busy)
        try:
            return await self._answer(request, writer)
        finally:
            self.busy -= 1
            self._after.set()

    async def _answer(self, request: Received, writer: asyncio.StreamWriter) -> bool:
        """Answer one request, well or badly. False: and hang up."""
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
            outcome = self.bank.look(request.path.rpartition("/")[2])
        else:
            outcome = self.bank.take(request.path, request.fields)
        named = {"req_id": request.headers["idempotency-key"]} if self.names_key else {}
        return _response(Canned(outcome.status, json.dumps(outcome.fields | named).encode()))


@contextlib.asynccontextmanager
async def account_service(*, sticky: bool) -> AsyncIterator[AccountService]:
    """A running service, which has hung up on everybody when the block ends."""
    talks: set[asyncio.Task[None]] = set()
    service = AccountService(Bank(sticky), port=0)

    def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talks.add(asyncio.create_task(service.serve(reader, writer)))

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    service.port = server.sockets[0].getsockname()[1]
    service.stop_listening = server.close
    try:
        yield service
    finally:
        server.close()
        for task in talks:
            task.cancel()
        ended = await asyncio.gather(*talks, return_exceptions=True)
        await server.wait_closed()
    # A service that broke must not pass for one that failed on purpose.
    for end in ended:
        if isinstance(end, BaseException) and not isinstance(end, asyncio.CancelledError):
            raise end


def _account(asked: Fields) -> Account:
    return Account(asked["user_id"], asked["account"], asked["asset"])


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


async def _hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
