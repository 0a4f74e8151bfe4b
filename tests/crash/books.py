"""Clients with their own books, which contain only what the API has returned to them."""

import asyncio
import itertools
import math
import random
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx2

USERS = tuple(range(11, 19))
SPOT_CLOSED, FUNDING_CLOSED = USERS[-2:]  # Transfers to these accounts must be rolled back.
CLIENTS = 12
ENDS = ("COMMITTED", "FAILED", "ROLLED_BACK")
PAUSE_S = 0.2
TIMEOUT_S = 8.0
UNAVAILABLE = (500, 503)  # The client asks again.


async def with_retries(ask: Callable[[], Awaitable[httpx2.Response]], until_s: float) -> Any:
    """Repeat a request until the server is available, and return the reply."""
    while True:
        try:
            reply = await ask()
        except httpx2.HTTPError:
            if time.monotonic() > until_s:
                raise
        else:
            if reply.status_code not in UNAVAILABLE or time.monotonic() > until_s:
                return reply.json()
        await asyncio.sleep(PAUSE_S)


@dataclass
class ClientTransfer:
    """One transfer, as its client knows it."""

    user: int
    body: dict[str, str]
    started_s: float
    ids: set[str] = field(default_factory=set)
    state: str | None = None
    ended_s: float = math.inf


@dataclass
class Books:
    """The books of all clients, and the violations that they have found."""

    base: str
    token: Callable[[int], str]
    dice: random.Random
    transfers: dict[str, ClientTransfer] = field(default_factory=dict)
    moved: dict[tuple[int, str], int] = field(default_factory=lambda: defaultdict(int))
    violations: list[str] = field(default_factory=list)
    closing: bool = False
    deadline_s: float = math.inf
    ended: int = 0
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def states(self) -> Counter[str]:
        return Counter(transfer.state for transfer in self.transfers.values() if transfer.state)

    async def load(self) -> None:
        """Post transfers until `closing` is set, then wait until all of them have ended."""
        await asyncio.gather(*(self._client() for _ in range(CLIENTS)))

    async def _client(self) -> None:
        async with httpx2.AsyncClient(base_url=self.base, timeout=TIMEOUT_S) as http:
            while not self.closing:
                user = self.dice.choice(USERS)
                source, target = self.dice.sample(["FUNDING", "SPOT"], 2)
                amount = str(self.dice.choice((1, 2, 7, 400)))
                cid = f"n{next(self._numbers)}"
                body = {"from": source, "to": target, "asset": "USDT", "amount": amount}
                self.transfers[cid] = transfer = ClientTransfer(
                    user, body | {"cid": cid}, time.monotonic()
                )
                await self._finish(http, transfer)
                await asyncio.sleep(self.dice.random() * PAUSE_S)

    async def _finish(self, http: httpx2.AsyncClient, transfer: ClientTransfer) -> None:
        """Repeat the request with one cid until the transfer has ended."""
        while time.monotonic() < self.deadline_s:
            try:
                reply = await self.post(http, transfer)
            except httpx2.HTTPError:
                await asyncio.sleep(PAUSE_S)
                continue
            if reply.status_code in (200, 201, 202, 422):
                self.note(transfer, reply.json())
            elif reply.status_code not in UNAVAILABLE:
                self.violations.append(f"{transfer.body}: {reply.status_code} {reply.text}")
                return
            if transfer.state is not None:
                return
            await asyncio.sleep(PAUSE_S)
        self.violations.append(f"{transfer.body}: not ended in time")

    async def post(self, http: httpx2.AsyncClient, transfer: ClientTransfer) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {self.token(transfer.user)}"}
        return await http.post("/api/v1/internal_transfer", json=transfer.body, headers=headers)

    async def balances(self, http: httpx2.AsyncClient, user: int) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {self.token(user)}"}
        return await http.get("/api/v1/balances", headers=headers)

    def note(self, transfer: ClientTransfer, reply: dict[str, Any]) -> None:
        """Record a reply. A reply that contradicts an earlier one is a violation."""
        if "req_id" not in reply:
            self.violations.append(f"{transfer.body}: {reply}")
            transfer.state = "refused"
            return
        transfer.ids.add(reply["req_id"])
        if len(transfer.ids) > 1:
            self.violations.append(f"{transfer.body['cid']} became two transfers: {transfer.ids}")
        state = reply["state"]
        if state not in ENDS:
            return
        if transfer.state is None:
            transfer.state, transfer.ended_s = state, time.monotonic()
            self.ended += 1
            self._move(transfer)
        elif transfer.state != state:
            self.violations.append(
                f"{transfer.body['cid']} was {transfer.state} and is now {state}"
            )

    def waited_s(self, faults_ended_s: float) -> float:
        """The longest time from a transfer's start, or from the end of the faults, to its end."""
        waits = (t.ended_s - max(t.started_s, faults_ended_s) for t in self.transfers.values())
        return max(waits, default=0.0)

    def _move(self, transfer: ClientTransfer) -> None:
        if transfer.state == "COMMITTED":
            amount = int(transfer.body["amount"])
            self.moved[transfer.user, transfer.body["from"]] -= amount
            self.moved[transfer.user, transfer.body["to"]] += amount
