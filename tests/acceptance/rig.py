"""A Tidegate of separate processes: the core, any number of APIs and workers, and their users."""

import asyncio
import itertools
import json
import random
import signal
import socket
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import msgspec
import psycopg
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from jwt.algorithms import OKPAlgorithm

from tests.acceptance.api import Parameters
from tests.conftest import SCHEMA
from tests.forked import Forked
from tests.token_clients import Bearer, assert_used_in_a_test
from tidegate.engine.gate import CORE
from tidegate.service.auth import TokenPolicy
from tidegate.service.keys import issue, new_keypair
from tidegate.settings import Settings
from tidegate.store.postgres import PostgresStore
from tidegate.systems.trading import (
    CoreCaller,
    KnownCore,
    TradingCoreClient,
    dial,
    load_known_core,
)

ROOT = Path(__file__).parents[2]
KILLED = -signal.SIGKILL
TERMS = TokenPolicy(issuer="tests", audience="tidegate")
KID = "acceptance"
PRIVATE, PUBLIC = new_keypair()
START_S = 20.0
USDT, UNIT = 3, 10**6
QUICK = {"scan_s": 0.1, "lease_s": 1.0, "retry_first_s": 0.1, "connections": 4}

T = TypeVar("T")


def token(subject: str, *roles: str) -> str:
    assert_used_in_a_test()
    return issue(PRIVATE, KID, TERMS.claims(subject, roles, time.time()))


def bearer(subject: str, *roles: str) -> Bearer:
    return Bearer(lambda: token(subject, *roles))


def jwks() -> str:
    """The harness's public key, as an API is configured with it."""
    public = serialization.load_pem_public_key(PUBLIC)
    assert isinstance(public, Ed25519PublicKey)
    return json.dumps({"keys": [json.loads(OKPAlgorithm.to_jwk(public)) | {"kid": KID}]})


def until(there: Callable[[], T], timeout_s: float = START_S) -> T:
    """Poll until there is a true value, and return it."""
    end_s = time.monotonic() + timeout_s
    while not (found := there()):
        assert time.monotonic() < end_s, f"not true within {timeout_s} s"
        time.sleep(0.05)
    return found


@dataclass
class Answer:
    status: int
    body: Any
    headers: Mapping[str, str]

    @property
    def code(self) -> str:
        return str(self.body["code"])


def answer_of(reply: httpx2.Response) -> Answer:
    kind = reply.headers.get("content-type", "")
    return Answer(reply.status_code, reply.json() if "json" in kind else reply.text, reply.headers)


@dataclass
class Child:
    """A process that a test can pause, continue and kill."""

    popen: Forked
    log: Path

    def signal(self, number: int) -> None:
        self.popen.send_signal(number)

    def kill(self) -> None:
        self.popen.ended()

    def output(self) -> str:
        return self.log.read_text()

    def arm(self) -> None:
        self.signal(signal.SIGUSR1)
        time.sleep(0.05)

    def dies(self, moment: str) -> None:
        """Wait until it has killed itself at this moment."""
        assert self.popen.wait(START_S) == KILLED
        assert f"killed {moment}" in self.output()


@dataclass
class Api(Child):
    port: int
    client: httpx2.Client

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        auth: str | Bearer | None = None,
        **more: Any,
    ) -> Answer:
        headers = dict(more.pop("headers", {}))
        if auth is not None:
            headers["Authorization"] = f"Bearer {auth}"
        return answer_of(self.client.request(method, path, json=body, headers=headers, **more))

    def desk(self, method: str, path: str, body: object = None) -> Answer:
        auth = token("olga", "operator", "auditor")
        return self.call(method, f"/api/v1/operator{path}", body, auth)

    def path(self, req_id: str) -> list[str]:
        """Every state in the history of a transfer, waypoints included."""
        replies = self.desk("GET", f"/transfers/{req_id}").body
        walked = [replies["history"][0]["path"][0]]
        for answer in replies["history"]:
            assert answer["path"][0] == walked[-1]
            walked += answer["path"][1:]
        return walked


@dataclass
class Stack:
    """One database, one directory, one core, and the APIs that were started on them."""

    database: str
    directory: Path
    children: list[Child] = field(default_factory=list)
    apis: list[Api] = field(default_factory=list)
    core: Child = field(init=False)
    owners: Iterator[int] = field(default_factory=lambda: itertools.count(4001))
    cids: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def address(self) -> str:
        return f"unix:{self.directory}/socket"

    @property
    def api(self) -> Api:
        """The API that was started last."""
        return self.apis[-1]

    def start_core(self, moment: str | None = None) -> Child:
        """If a moment is named, it dies there once it is armed."""
        folder = self.directory / "core"
        folder.mkdir(exist_ok=True)
        if moment is not None:
            command = ["tests.acceptance.core", str(folder), self.address, "0", moment]
        else:
            command = ["tidegate.trading_core", "--data", str(folder), "--listen", self.address]
        log = self._log("core")
        self.core = Child(Forked(command, log), log)
        self.children.append(self.core)
        until(self._core_listens)
        return self.core

    def _core_listens(self) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            return probe.connect_ex(f"{self.directory}/socket") == 0

    def start_api(self, moment: str | None = None, **changes: Any) -> Api:
        """If a moment is named, it dies there once it is armed."""
        port = _free_port()
        popen, log = self._serve(Parameters(self._settings(port, changes), moment))
        client = httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, trust_env=False)
        api = Api(popen, log, port, client)
        self.children.append(api)
        self.apis.append(api)
        until(lambda: _alive(api))
        return api

    def recover_into_death(self, moment: str) -> None:
        """Start an API that continues the open transfers and dies at this moment."""
        settings = self._settings(_free_port(), {})
        api = Child(*self._serve(Parameters(settings, moment, armed=True)))
        self.children.append(api)
        api.dies(moment)

    def start_worker(self, **changes: Any) -> Child:
        worker = Child(*self._serve(Parameters(self._settings(0, changes), worker=True)))
        self.children.append(worker)
        return worker

    def _settings(self, port: int, changes: dict[str, Any]) -> Settings:
        keys = self.directory / "keys.json"
        keys.write_text(jwks())
        settings = Settings(
            database=self.database,
            schema=SCHEMA,
            core=self.address,
            port=port,
            issuer=TERMS.issuer,
            audience=TERMS.audience,
            keys=str(keys),
        )
        return msgspec.structs.replace(settings, **(QUICK | changes))

    def _serve(self, parameters: Parameters) -> tuple[Forked, Path]:
        log = self._log("worker" if parameters.worker else "api")
        reply = msgspec.json.encode(parameters).decode()
        return Forked(["tests.acceptance.api", reply], log), log

    def user(self, funding: int = 0, spot: int = 0) -> "User":
        """A new owner with these amounts of USDT in the accounts."""
        user = User(self, next(self.owners))
        for account, amount in (("FUNDING", funding), ("SPOT", spot)):
            if amount:
                user.fund(account, str(amount))
        return user

    def rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Read, or spoil, the database behind the program's back."""
        options = f"-c search_path={SCHEMA},tidegate"
        with psycopg.connect(self.database, options=options) as connection:
            cursor = connection.execute(statement.encode(), values)
            return cursor.fetchall() if cursor.description else []

    def ask_core(self, asking: Callable[[TradingCoreClient], Awaitable[T]]) -> T:
        """As a client of the store that remembers nothing of the core."""

        async def forgotten() -> KnownCore:
            async with PostgresStore(self.database, SCHEMA) as store, store.transaction() as tx:
                return (await load_known_core(tx, CORE))._replace(mark=None)

        async def main() -> T:
            client = TradingCoreClient(CORE, dial(self.address), CoreCaller("tests"), forgotten)
            try:
                return await asking(client)
            finally:
                await client.close()

        return asyncio.run(main())

    def close(self) -> None:
        for api in self.apis:
            api.client.close()
        for child in self.children:
            child.kill()

    def _log(self, name: str) -> Path:
        return self.directory / f"{name}-{len(self.children)}.log"


@dataclass
class User:
    """An owner of money, with its balances as the systems report them."""

    stack: Stack
    owner: int

    @property
    def token(self) -> str:
        return token(str(self.owner), "user")

    def fund(self, account: str, amount: str, asset: str = "USDT") -> None:
        cid = f"fund-{next(self.stack.cids)}"
        body = {"user_id": self.owner, "account": account, "asset": asset, "amount": amount}
        reply = self.stack.api.desk("POST", "/deposit", body | {"cid": cid})
        assert reply.status in (201, 202), reply
        until(lambda: self._ended(reply.body["req_id"]))

    def _ended(self, req_id: str) -> bool:
        return bool(self.shown(req_id)["state"] == "COMPLETED")

    def set_status(self, account: str, status: str) -> None:
        body = {"user_id": self.owner, "account": account, "asset": "USDT", "status": status}
        reply = self.stack.api.desk("POST", "/account_status", body)
        assert reply.status == 200, reply

    def move(self, direction: str, amount: str, /, **more: Any) -> Answer:
        """`in`: from FUNDING to SPOT, `out`: back. `api` and `wait_s` are not part of the body."""
        api: Api = more.pop("api", self.stack.api)
        wait_s = more.pop("wait_s", 10)
        body = transfer_body(direction, amount) | more
        headers = {"Prefer": f"wait={wait_s}"}
        return api.call("POST", "/api/v1/internal_transfer", body, self.token, headers=headers)

    def move_into_death(self, direction: str, amount: str, cid: str) -> None:
        """Send a request to an API that dies before it can answer."""
        with suppress(httpx2.TransportError):
            reply = self.move(direction, amount, cid=cid)
            assert reply.status >= 500, f"it should have died: {reply}"

    def shown(self, req_id: str) -> Any:
        return self.stack.api.desk("GET", f"/transfers/{req_id}").body["transfer"]

    def state(self, req_id: str) -> str:
        reply = self.stack.api.call("GET", f"/api/v1/internal_transfer/{req_id}", auth=self.token)
        return str(reply.body["state"])

    def ends(self, req_id: str, state: str) -> None:
        until(lambda: self.shown(req_id)["lane"] is None)
        assert self.state(req_id) == state

    def transfers(self) -> list[tuple[Any, ...]]:
        """(id, state, version) of every internal transfer of this owner, from the table."""
        statement = "SELECT id, state, version FROM transfers WHERE owner = %s AND flow = %s"
        return self.stack.rows(f"{statement} ORDER BY id", self.owner, "internal_transfer")

    def held(self, asset_id: int = USDT) -> tuple[int, int]:
        """The balances of FUNDING and SPOT in smallest units, each read from its system."""
        statement = "SELECT available FROM ledger_accounts WHERE owner = %s AND asset_id = %s"
        rows = self.stack.rows(f"{statement} AND book = 'FUNDING'", self.owner, asset_id)
        spot = self.stack.ask_core(lambda core: core.balance(self.owner, "SPOT", asset_id))
        return (int(rows[0][0]) if rows else 0), spot.amount

    def has(self, funding: int, spot: int) -> None:
        """The balances are exactly these, and their sum equals deposits minus withdrawals."""
        self.has_in_flight(funding, spot, 0)

    def has_in_flight(self, funding: int, spot: int, in_flight: int) -> None:
        """The same, while some of it has left one account and not reached the other."""
        assert self.held() == (funding * UNIT, spot * UNIT)
        statement = "SELECT sum(-available) FROM ledger_accounts WHERE owner = %s AND asset_id = %s"
        [(outside,)] = self.stack.rows(f"{statement} AND book = 'OUTSIDE'", self.owner, USDT)
        assert outside == (funding + spot + in_flight) * UNIT


def transfer_body(direction: str, amount: str) -> dict[str, Any]:
    source, target = ("FUNDING", "SPOT") if direction == "in" else ("SPOT", "FUNDING")
    return {"from": source, "to": target, "asset": "USDT", "amount": amount}


def _free_port() -> int:
    """A port below the ephemeral range, which the thousands of client connections use."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _alive(api: Api) -> bool:
    assert api.popen.poll() is None, api.output()
    with suppress(httpx2.TransportError):
        return api.call("GET", "/healthz").status == 200
    return False


@contextmanager
def stacked(database: str) -> Iterator[Stack]:
    """A stack in a directory with a short path, as the path of a socket is limited."""
    with tempfile.TemporaryDirectory(prefix="tg-") as directory:
        stack = Stack(database, Path(directory))
        try:
            yield stack
        finally:
            stack.close()
