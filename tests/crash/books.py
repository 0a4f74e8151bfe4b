"""Clients that keep books of their own: what they were told, and nothing else."""

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
SPOT_CLOSED, FUNDING_CLOSED = USERS[-2:]  # What is sent there must come back.
CLIENTS = 12
ENDS = ("COMMITTED", "FAILED", "ROLLED_BACK")
PAUSE_S = 0.2
TIMEOUT_S = 8.0
AWAY = (500, 503)  # Ask again.


async def patiently(ask: Callable[[], Awaitable[httpx2.Response]], until_s: float) -> Any:
    """What is said in the end, when whoever is asked has come back."""
    while True:
        try:
            said = await ask()
        except httpx2.HTTPError:
            if time.monotonic() > until_s:
                raise
        else:
            if said.status_code not in AWAY or time.monotonic() > until_s:
                return said.json()
        await asyncio.sleep(PAUSE_S)


@dataclass
class Wish:
    """One transfer as its client knows it."""

    user: int
    body: dict[str, str]
    begun_s: float
    ids: set[str] = field(default_factory=set)
    state: str | None = None
    ended_s: float = math.inf


@dataclass
class Books:
    base: str
    token: Callable[[int], str]
    dice: random.Random
    wishes: dict[str, Wish] = field(default_factory=dict)
    moved: dict[tuple[int, str], int] = field(default_factory=lambda: defaultdict(int))
    violations: list[str] = field(default_factory=list)
    closing: bool = False
    deadline_s: float = math.inf
    ended: int = 0
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def states(self) -> Counter[str]:
        return Counter(wish.state for wish in self.wishes.values() if wish.state)

    async def load(self) -> None:
        """Until it is closing, and then until what was begun has ended."""
        await asyncio.gather(*(self._client() for _ in range(CLIENTS)))

    async def _client(self) -> None:
        async with httpx2.AsyncClient(base_url=self.base, timeout=TIMEOUT_S) as http:
            while not self.closing:
                user = self.dice.choice(USERS)
                source, target = self.dice.sample(["FUNDING", "SPOT"], 2)
                amount = str(self.dice.choice((1, 2, 7, 400)))
                cid = f"n{next(self._numbers)}"
                body = {"from": source, "to": target, "asset": "USDT", "amount": amount}
                self.wishes[cid] = wish = Wish(user, body | {"cid": cid}, time.monotonic())
                await self._fulfil(http, wish)
                await asyncio.sleep(self.dice.random() * PAUSE_S)

    async def _fulfil(self, http: httpx2.AsyncClient, wish: Wish) -> None:
        """With one cid until it is known what became of it, whoever dies meanwhile."""
        while time.monotonic() < self.deadline_s:
            try:
                said = await self.post(http, wish)
            except httpx2.HTTPError:
                await asyncio.sleep(PAUSE_S)
                continue
            if said.status_code in (200, 201, 202, 422):
                self.note(wish, said.json())
            elif said.status_code not in AWAY:
                self.violations.append(f"{wish.body}: {said.status_code} {said.text}")
                return
            if wish.state is not None:
                return
            await asyncio.sleep(PAUSE_S)
        self.violations.append(f"{wish.body}: no end in time")

    async def post(self, http: httpx2.AsyncClient, wish: Wish) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {self.token(wish.user)}"}
        return await http.post("/api/v1/internal_transfer", json=wish.body, headers=headers)

    async def balances(self, http: httpx2.AsyncClient, user: int) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {self.token(user)}"}
        return await http.get("/api/v1/balances", headers=headers)

    def note(self, wish: Wish, said: dict[str, Any]) -> None:
        """What was told is written down; what was told otherwise before is a violation."""
        if "req_id" not in said:
            self.violations.append(f"{wish.body}: {said}")
            wish.state = "refused"
            return
        wish.ids.add(said["req_id"])
        if len(wish.ids) > 1:
            self.violations.append(f"{wish.body['cid']} became two transfers: {wish.ids}")
        state = said["state"]
        if state not in ENDS:
            return
        if wish.state is None:
            wish.state, wish.ended_s = state, time.monotonic()
            self.ended += 1
            self._move(wish)
        elif wish.state != state:
            self.violations.append(f"{wish.body['cid']} was {wish.state}, and is {state}")

    def waited_s(self, healed_s: float) -> float:
        """The longest that a transfer took to end after it could."""
        waits = (w.ended_s - max(w.begun_s, healed_s) for w in self.wishes.values())
        return max(waits, default=0.0)

    def _move(self, wish: Wish) -> None:
        if wish.state == "COMMITTED":
            amount = int(wish.body["amount"])
            self.moved[wish.user, wish.body["from"]] -= amount
            self.moved[wish.user, wish.body["to"]] += amount
