"""Steady mixed load on a real Tidegate under continuous audits: nothing may halt it.

`python -m tests.acceptance.soak --minutes 60` is the long run, `make soak`. The test runs the same
code for half a minute. Owners move money in both directions, request too much, repeat requests and
send malformed ones. An operator freezes and disables accounts, and a worker is killed. Each owner
keeps its own books, from the replies that it got.
"""

import argparse
import asyncio
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import httpx2

from tests.acceptance.webhook import listening
from tests.running import Up, eventually, running
from tidegate.client import Client
from tidegate.commands.progress import bar
from tidegate.supervisor.demo_tokens import token

OWNERS = range(11, 19)
START = {"FUNDING": 1_000, "SPOT": 500}
PACE_S = 0.05  # Between two requests of one owner: a steady load, not the highest.
FREEZE_EVERY_S, FROZEN_S = 1.0, 0.3
AUDIT_EVERY_S = 0.5
KILL_EVERY_S = 600.0
ENDS_WITHIN_S = 35.0
MAX_MINUTES = 420  # The local tokens are valid for eight hours.
# The service's own audit is incremental. Eight busy owners must not raise alerts.
SETTINGS = "audit_s = 1.0\nalert_busy_owner = 1000000\n"
V1, DESK = "/api/v1", "/api/v1/operator"
ACTIONS = {"move": 12, "too much": 2, "repeat": 3, "malformed": 1, "look": 2}  # With weights.
ENDED = {200, 201, 422}

Body: TypeAlias = dict[str, str]
Report: TypeAlias = Callable[[float, "Counter[str]"], None]


@dataclass
class Load:
    """The load on one Tidegate until a given time, and the counts of its results."""

    up: Up
    until_s: float
    dice: random.Random = field(default_factory=lambda: random.Random(5))
    numbers: Iterator[int] = field(default_factory=itertools.count)
    moved: dict[tuple[int, str], int] = field(default_factory=lambda: defaultdict(int))
    tally: Counter[str] = field(default_factory=Counter)

    @property
    def over(self) -> bool:
        return time.monotonic() >= self.until_s

    def client(self, subject: int | str, role: str) -> httpx2.AsyncClient:
        bearer = f"Bearer {token(self.up.directory, str(subject), role)}"
        return httpx2.AsyncClient(
            base_url=self.up.url, timeout=120, trust_env=False, headers={"Authorization": bearer}
        )

    async def owner(self, owner: int) -> None:
        last: Body | None = None
        async with self.client(owner, "user") as http:
            while not self.over:
                [action] = self.dice.choices([*ACTIONS], [*ACTIONS.values()])
                if action == "look":
                    assert (await http.get(f"{V1}/balances")).status_code == 200
                elif action == "malformed":
                    reply = await http.post(f"{V1}/internal_transfer", json={"amount": 1})
                    assert reply.status_code == 400, reply.text
                elif action == "repeat" and last is not None:
                    await self.repeat(http, last)
                else:
                    last = self.transfer_body("999999999" if action == "too much" else None)
                    self.note(owner, last, await self.put(http, last))
                await asyncio.sleep(PACE_S)

    def transfer_body(self, amount: str | None) -> Body:
        source, target = self.dice.sample(["FUNDING", "SPOT"], 2)
        much = amount or str(self.dice.choice((1, 2, 7)))
        cid = f"soak-{next(self.numbers)}"
        return {"from": source, "to": target, "asset": "USDT", "amount": much, "cid": cid}

    async def put(self, http: httpx2.AsyncClient, body: Body) -> Any:
        """Repeat a request under one cid until the transfer has ended."""
        give_up_s = time.monotonic() + ENDS_WITHIN_S
        while time.monotonic() < give_up_s:
            reply = await http.post(f"{V1}/internal_transfer", json=body)
            if reply.status_code in ENDED:
                return reply.json()
            assert reply.status_code == 202, reply.text
            self.tally["waited"] += 1
        raise AssertionError(f"{body} has not ended after {ENDS_WITHIN_S} s")

    async def repeat(self, http: httpx2.AsyncClient, body: Body) -> None:
        reply = await self.put(http, body)
        assert reply["duplicate"], reply
        self.tally["replays"] += 1

    def note(self, owner: int, body: Body, reply: Any) -> None:
        self.tally["transfers"] += 1
        self.tally[reply["state"]] += 1
        if reply["state"] == "COMMITTED":
            self.moved[owner, body["from"]] -= int(body["amount"])
            self.moved[owner, body["to"]] += int(body["amount"])

    async def freeze(self) -> None:
        """Freeze or disable accounts for a moment, so that transfers fail and are rolled back."""
        async with self.client("olga", "operator") as http:
            while not self.over:
                account: dict[str, object] = {
                    "user_id": self.dice.choice(OWNERS),
                    "account": self.dice.choice([*START]),
                    "asset": "USDT",
                }
                for status in (self.dice.choice(("FROZEN", "DISABLED")), "ACTIVE"):
                    change = account | {"status": status}
                    reply = await http.post(f"{DESK}/account_status", json=change)
                    assert reply.status_code == 200, reply.text
                    await asyncio.sleep(FROZEN_S)
                self.tally["freezes"] += 1
                await asyncio.sleep(FREEZE_EVERY_S - FROZEN_S)

    async def audit(self) -> None:
        """Run full and incremental audits in turn, without a pause."""
        async with self.client("axel", "auditor") as http:
            for full in itertools.cycle(("true", "false")):
                reply = await http.get(f"{DESK}/audit", params={"full": full}, timeout=600)
                report = reply.json()
                assert reply.status_code == 200, report
                assert report["ok"], report
                assert not report["halted"], report
                self.tally["full audits" if full == "true" else "incremental audits"] += 1
                if self.over:
                    return
                await asyncio.sleep(AUDIT_EVERY_S)

    async def kill(self, moments: list[float]) -> None:
        for moment_s in moments:
            await asyncio.sleep(max(moment_s - time.monotonic(), 0))
            os.kill(self.up.pid("worker-1"), signal.SIGKILL)
            self.tally["kills"] += 1

    async def run(self, seconds: float, report_progress: Report) -> None:
        started_s = self.until_s - seconds
        kills = max(int(seconds / KILL_EVERY_S), 1)
        moments = [started_s + seconds * (n + 0.5) / kills for n in range(kills)]
        async with asyncio.TaskGroup() as group:
            for owner in OWNERS:
                group.create_task(self.owner(owner))
            for task in (self.freeze(), self.audit(), self.kill(moments)):
                group.create_task(task)
            while not self.over:
                report_progress(min(time.monotonic() - started_s, seconds), self.tally)
                await asyncio.sleep(0.5)


def soak(directory: Path, seconds: float, report_progress: Report) -> "Counter[str]":
    """Run the load. Raise if there is a halt or a critical alert, or if the books differ."""
    directory.mkdir()
    with listening() as webhook:
        settings = f'{SETTINGS}alert_webhook = "{webhook.url}"\n'
        (directory / "tidegate.toml").write_text(settings)
        with running(directory, "--port", "0", "--bare") as up:
            endow(up)
            load = Load(up, time.monotonic() + seconds)
            asyncio.run(load.run(seconds, report_progress))
            check(load)
        logs = "".join(path.read_text() for path in (directory / "log").glob("*.log"))
    urgent = [alert for alert in webhook.posted if alert["alarm"] != "PAGE"]
    assert urgent == [], urgent
    assert "critical" not in logs.lower(), logs
    load.tally["pages"] = len(webhook.posted)
    return load.tally


def endow(up: Up) -> None:
    with Client(up.url, token(up.directory, "olga", "operator")) as desk:
        for owner, (account, amount) in itertools.product(OWNERS, START.items()):
            to = {"user_id": owner, "account": account, "asset": "USDT", "amount": str(amount)}
            desk.deposit(to | {"cid": f"start-{owner}-{account}"})
        eventually(lambda: all_ended(desk), ENDS_WITHIN_S)


def all_ended(desk: Client) -> bool:
    return bool(desk.search(stuck_s=0)["transfers"] == [])


def check(load: Load) -> None:
    """All transfers have ended, the owners' books equal the balances, and the audit is clean."""
    up = load.up
    with Client(up.url, token(up.directory, "axel", "auditor")) as desk:
        eventually(lambda: all_ended(desk), ENDS_WITHIN_S)
    for owner in OWNERS:
        with Client(up.url, token(up.directory, str(owner), "user")) as client:
            held = {row["account"]: row["available"] for row in client.balances()["balances"]}
        for account, start in START.items():
            assert held[account] == f"{start + load.moved[owner, account]}.000000", owner
    report = up.json("audit")
    assert (report["ok"], report["halted"]) == (True, False), report
    assert report["assets"]["USDT"]["gap"] == "0", report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    minutes = parser.parse_args().minutes
    if not 0 < minutes <= MAX_MINUTES:
        parser.error(f"--minutes must be more than 0 and at most {MAX_MINUTES}")
    with tempfile.TemporaryDirectory(prefix="tidegate-soak-") as name, bar() as shown:
        task = shown.add_task("soak", total=int(minutes * 60))

        def report_progress(passed_s: float, tally: "Counter[str]") -> None:
            words = f"{tally['transfers']} transfers, {tally['full audits']} full audits"
            shown.update(task, completed=int(passed_s), description=words)

        tally = soak(Path(name) / "all", minutes * 60, report_progress)
    sys.stdout.write(json.dumps(tally) + "\n")


if __name__ == "__main__":
    main()
