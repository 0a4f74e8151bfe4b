"""Everything that `tidegate up` runs is killed under load, one by one and all at once.

An independent client keeps its own books: what it was told. When all has come back, every
transfer must have ended, and the balances must be the client's to the last unit.
"""

import asyncio
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest

pytestmark = pytest.mark.slow

PROGRAM = Path(sys.executable).with_name("tidegate")
USERS = (11, 12, 13, 14)
LOAD_S = 16.0
ENDS_WITHIN_S = 35.0
UNIT = 10**6


def command(*words: str) -> str:
    said = subprocess.run([PROGRAM, *words], capture_output=True, text=True, timeout=60, check=True)
    return said.stdout.strip()


@contextmanager
def house(directory: Path) -> Iterator[str]:
    """`tidegate up`, until the end of the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["up", "--data", str(directory), "--port", str(port), "--bare"]
    log = (directory.parent / "up.log").open("w")
    with subprocess.Popen([PROGRAM, *words], stdout=subprocess.PIPE, stderr=log, text=True) as up:
        try:
            assert up.stdout is not None
            ready = up.stdout.readline().strip()
            assert ready == f"ready http://127.0.0.1:{port}", ready
            yield ready.removeprefix("ready ")
        finally:
            up.send_signal(signal.SIGINT)
            up.wait(60)
            log.close()


@dataclass
class Books:
    """What one client believes, from the answers that it got."""

    base: str
    tokens: dict[int, str]
    dice: random.Random = field(default_factory=lambda: random.Random(7))
    numbers: Iterator[int] = field(default_factory=itertools.count)
    moved: dict[tuple[int, str], int] = field(default_factory=lambda: defaultdict(int))
    ended: int = 0

    async def client(self, until_s: float) -> None:
        async with httpx2.AsyncClient(base_url=self.base, timeout=8) as http:
            while time.monotonic() < until_s:
                user = self.dice.choice(USERS)
                source, target = self.dice.sample(["FUNDING", "SPOT"], 2)
                amount = str(self.dice.choice((1, 2, 7, 400)))
                body = {"from": source, "to": target, "asset": "USDT", "amount": amount}
                await self.put(http, user, body | {"cid": f"n{next(self.numbers)}"})

    async def put(self, http: httpx2.AsyncClient, user: int, body: dict[str, str]) -> None:
        """With one cid until it is known what became of it, whoever dies meanwhile."""
        until_s = time.monotonic() + ENDS_WITHIN_S + LOAD_S
        while time.monotonic() < until_s:
            try:
                headers = {"Authorization": f"Bearer {self.tokens[user]}"}
                said = await http.post("/api/v1/internal_transfer", json=body, headers=headers)
            except httpx2.HTTPError:
                await asyncio.sleep(0.2)
                continue
            if said.status_code in (200, 201, 422):
                self.note(user, body, said.json())
                return
            assert said.status_code in (202, 500, 503), (said.status_code, said.text)
            await asyncio.sleep(0.2)
        raise AssertionError(f"no end for {body} within {ENDS_WITHIN_S} s after the load")

    def note(self, user: int, body: dict[str, str], said: dict[str, Any]) -> None:
        self.ended += 1
        if said["state"] == "COMMITTED":
            self.moved[user, body["from"]] -= int(body["amount"])
            self.moved[user, body["to"]] += int(body["amount"])
        else:
            assert said["state"] in ("FAILED", "ROLLED_BACK"), said


async def kill_about(directory: Path, until_s: float) -> int:
    """Each by turns, and in the end all at once, as a power failure would."""
    kills = 0
    names = ["core", "api", "postgres", "worker-1"]
    while time.monotonic() < until_s - 4:
        await asyncio.sleep(2.0)
        kills += kill(directory, names[kills % len(names)])
    for name in names:
        kills += kill(directory, name)
    return kills


def kill(directory: Path, name: str) -> bool:
    try:
        os.kill(int((directory / "run" / f"{name}.pid").read_text()), signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return False
    return True


async def load(base: str, directory: Path, tokens: dict[int, str]) -> tuple[Books, int]:
    books = Books(base, tokens)
    until_s = time.monotonic() + LOAD_S
    clients = [books.client(until_s) for _ in range(12)]
    *_, kills = await asyncio.gather(*clients, kill_about(directory, until_s))
    return books, int(kills or 0)


def test_kills_of_everything_lose_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "house"
    with house(directory) as base:
        place = ("--data", str(directory))
        tokens = {user: command("token", *place, "--user", str(user)) for user in USERS}
        for user in USERS:
            for account, amount in (("FUNDING", "1000"), ("SPOT", "500")):
                command("fund", *place, str(user), account, "USDT", amount)
        books, kills = asyncio.run(load(base, directory, tokens))
        assert kills >= 8
        assert books.ended > 100, books.ended
        for user in USERS:
            found = json.loads(command("balances", *place, "--user", str(user), "-o", "json"))
            held = {b["account"]: b["available"] for b in found["balances"] if b["asset"] == "USDT"}
            for account, start in (("FUNDING", 1_000), ("SPOT", 500)):
                wanted = start + books.moved[user, account]
                assert held[account] == f"{wanted}.000000", (user, account)
        report = json.loads(command("audit", *place, "-o", "json"))
        assert report["ok"], report
        assert not report["halted"], report
        assert report["assets"]["USDT"]["gap"] == "0", report
