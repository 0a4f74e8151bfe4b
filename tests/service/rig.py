"""The HTTP API on a real socket, with real tokens, a real database and the real core's code."""

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import httpx2

from tests.engine.watched_gate import open_gate
from tests.token_clients import Bearer, assert_used_in_a_test
from tidegate.engine.gate import Gate
from tidegate.service.api import Api
from tidegate.service.auth import TokenPolicy, Verifier
from tidegate.service.connections import server_of
from tidegate.service.keys import FixedKeys, issue, key_of_pem, new_keypair
from tidegate.service.metrics import Metrics
from tidegate.service.rate_limits import OwnerRateLimit
from tidegate.service.routing import ServiceContext
from tidegate.trading_core.disk import RealDisk

TERMS = TokenPolicy(issuer="tests", audience="tidegate")
PRIVATE, PUBLIC = new_keypair()
ALICE, BOB = 4001, 4002


def token(subject: str, *roles: str) -> str:
    assert_used_in_a_test()
    return issue(PRIVATE, "test", TERMS.claims(subject, roles, time.time()))


def bearer(subject: str, *roles: str) -> Bearer:
    return Bearer(lambda: token(subject, *roles))


@dataclass
class Answer:
    status: int
    body: Any
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class ApiClient:
    """A client of a running service, with access to its gate."""

    gate: Gate
    client: httpx2.AsyncClient
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    async def call(
        self,
        method: str,
        path: str,
        body: object = None,
        bearer: str | Bearer | None = None,
        **more: Any,
    ) -> Answer:
        headers = dict(more.pop("headers", {}))
        if bearer is not None:
            headers["Authorization"] = f"Bearer {bearer}"
        reply = await self.client.request(method, path, json=body, headers=headers, **more)
        is_json = "json" in reply.headers.get("content-type", "")
        return Answer(reply.status_code, reply.json() if is_json else reply.text, reply.headers)

    async def transfer(self, body: Mapping[str, object], owner: int = ALICE, **more: Any) -> Answer:
        return await self.call(
            "POST", "/api/v1/internal_transfer", body, token(str(owner), "user"), **more
        )

    async def operator(self, method: str, path: str, body: object = None) -> Answer:
        bearer = token("olga", "operator", "auditor")
        return await self.call(method, f"/api/v1/operator{path}", body, bearer)

    async def fund(self, account: str, amount: str, owner: int = ALICE) -> None:
        body: dict[str, object] = {
            "user_id": owner,
            "account": account,
            "asset": "USDT",
            "amount": amount,
        }
        body["cid"] = f"fund-{next(self.numbers)}"
        reply = await self.operator("POST", "/deposit", body)
        assert reply.status in (201, 202), reply

    async def balances(self, owner: int = ALICE) -> dict[tuple[str, str], str]:
        reply = await self.call("GET", "/api/v1/balances", bearer=token(str(owner), "user"))
        return {(b["account"], b["asset"]): b["available"] for b in reply.body["balances"]}


@asynccontextmanager
async def running_service(
    database: str, directory: Path, rate: OwnerRateLimit | None = None
) -> AsyncIterator[ApiClient]:
    verifier = Verifier(FixedKeys([key_of_pem("test", PUBLIC)]), TERMS, time.time)
    dice, metrics = random.Random(3), Metrics()
    async with open_gate(database, RealDisk(directory)) as gate:
        object.__setattr__(gate.engine.parts, "ended", metrics.ended)
        service = ServiceContext(
            gate=gate,
            authenticate=verifier.authenticate,
            metrics=metrics,
            clock=time.monotonic,
            new_id=lambda: f"{dice.getrandbits(64):016x}",
            wait_s=5.0,
            rate=rate,
        )
        async with serving(service) as api:
            yield api


@asynccontextmanager
async def serving(service: ServiceContext) -> AsyncIterator[ApiClient]:
    server = server_of(Api(service))
    task = asyncio.ensure_future(server.serve())
    while not server.started:  # noqa: ASYNC110  Uvicorn has no event for this.
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    base = f"http://127.0.0.1:{port}"
    try:
        async with httpx2.AsyncClient(base_url=base, timeout=20) as client:
            yield ApiClient(service.gate, client)
    finally:
        server.should_exit = True
        await task


Scenario: TypeAlias = Callable[[ApiClient], Awaitable[None]]
Run: TypeAlias = Callable[[Scenario], None]


def runner_for(database: str, directory: Path) -> Run:
    async def run(scenario: Scenario) -> None:
        async with running_service(database, directory) as api:
            await scenario(api)

    return lambda scenario: asyncio.run(run(scenario))
