"""Faults under load: `python -m tests.crash.run --kills 50 --transfers 2000 [--seed N] [-o json]`.

Everything that `tidegate up` runs is killed, paused, disconnected, or left without disk space,
while clients with their own books post transfers. The supervisor restarts what died. At the end
every transfer has ended, and the balances of the systems equal the clients' books.
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import psycopg
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.crash.books import FUNDING_CLOSED, SPOT_CLOSED, USERS, Books, with_retries
from tests.crash.faults import TIMEOUT_S, Faults, Harmless, eventually
from tests.crash.relay import relayed
from tests.crash.small_disk import CoreDisk, small_disk
from tidegate.client import Client
from tidegate.postgres import dying_with_us
from tidegate.settings import without_settings
from tidegate.supervisor.demo_tokens import token

PROGRAM = Path(sys.executable).with_name("tidegate")
UNIT = 10**6
START = {"FUNDING": 1_000, "SPOT": 500}
TOKEN_S = 300.0  # A token lives for fifteen minutes.
ENDS_BETWEEN = 12  # Transfers that must end between two faults, so that each fault hits a load.
REPLAYS = 40
SLOWEST_RATE = 5  # Transfers per second, without faults.
SCHEMA = "tidegate_store"
# The lease is shorter than a pause: another worker takes over before the paused one continues.
SETTINGS = {"TIDEGATE_LEASE_S": "3"}


class Plan(NamedTuple):
    kills: int
    transfers: int
    seed: int


class RunningUp(NamedTuple):
    """A running `tidegate up`: its directory, its URL and the disk of its core."""

    directory: Path
    base: str
    disk: CoreDisk


@contextmanager
def running_up() -> Iterator[RunningUp]:
    """Run `tidegate up` in a directory with a short path, as the path of a socket is limited."""
    with tempfile.TemporaryDirectory(prefix="tg") as name:
        directory = Path(name) / "data"
        with small_disk(directory / "core") as disk, (Path(name) / "up.log").open("w+") as log:
            command = [str(PROGRAM), "up", "--data", str(directory), "--port", "0", "--bare"]
            with subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=without_settings(os.environ) | SETTINGS,
                preexec_fn=dying_with_us(signal.SIGINT),  # noqa: PLW1509  It calls the kernel.
            ) as up:
                try:
                    assert up.stdout is not None
                    ready = up.stdout.readline().strip()
                    assert ready.startswith("ready http"), Path(log.name).read_text()
                    yield RunningUp(directory, ready.removeprefix("ready "), disk)
                finally:
                    up.send_signal(signal.SIGINT)
                    up.wait(90)


def endow(up_run: RunningUp) -> None:
    """Give money to all users, and disable two accounts."""
    with Client(up_run.base, token(up_run.directory, "crash", "operator")) as client:
        for user in USERS:
            for account, amount in START.items():
                target = {"user_id": user, "account": account, "asset": "USDT"}
                client.deposit({**target, "amount": str(amount), "cid": f"start-{user}-{account}"})
        for user, account in ((SPOT_CLOSED, "SPOT"), (FUNDING_CLOSED, "FUNDING")):
            target = {"user_id": user, "account": account, "asset": "USDT"}
            client.account_status({**target, "status": "DISABLED"})


def tokens(directory: Path) -> Callable[[int], str]:
    cached: dict[int, tuple[float, str]] = {}

    def token_of(user: int) -> str:
        made_s, text = cached.get(user, (0.0, ""))
        if time.monotonic() - made_s > TOKEN_S or not text:
            text = token(directory, str(user), "user")
            cached[user] = time.monotonic(), text
        return text

    return token_of


async def inject_all(faults: Faults, books: Books, plan: Plan, bar: Progress) -> float:
    """Inject all faults, and wait for enough transfers. Return when the last fault was over."""
    shown = bar.add_task("faults", total=plan.kills)
    faults_ended_s = time.monotonic()
    for kind in faults.order(plan.kills):
        try:
            await wait_for_ends(books, books.ended + ENDS_BETWEEN)
            await asyncio.sleep(faults.dice.random() / 2)
            await faults.inject(kind)
        except Harmless as fault:
            books.violations.append(f"the fault {kind!r} had no effect: {fault}")
        faults_ended_s = time.monotonic()
        bar.update(shown, advance=1, description=f"{kind}, {len(books.transfers)} transfers")
    slowest_s = TIMEOUT_S + plan.transfers / SLOWEST_RATE
    await eventually(lambda: len(books.transfers) >= plan.transfers, "the load is slow", slowest_s)
    return faults_ended_s


async def wait_for_ends(books: Books, count: int) -> None:
    await eventually(lambda: books.ended >= count, "transfers do not end any more")


async def compare(up_run: RunningUp, books: Books) -> None:
    """Compare the clients' books with the API and the store."""
    await compare_balances(up_run, books)
    endpoints = json.loads((up_run.directory / "run" / "endpoints.json").read_text())
    async with await psycopg.AsyncConnection.connect(endpoints["postgres"]) as database:
        rows = await database.execute(
            f"SELECT c.cid, t.state, count(*) OVER (PARTITION BY c.owner, c.cid)"
            f" FROM {SCHEMA}.transfers AS t JOIN {SCHEMA}.cids AS c ON c.transfer_id = t.id"
            f" WHERE t.flow = 'internal_transfer'"
        )
        stored = {cid: (state, copies) async for cid, state, copies in rows}
        total = await database.execute(
            f"SELECT count(*) FROM {SCHEMA}.transfers WHERE flow = 'internal_transfer'"
        )
        count = (await total.fetchone() or (0,))[0]
    expected = {cid: (transfer.state, 1) for cid, transfer in books.transfers.items()}
    books.violations += [
        f"{cid}: the client has {expected.get(cid)}, the store has {stored.get(cid)}"
        for cid in expected.keys() | stored.keys()
        if expected.get(cid) != stored.get(cid)
    ]
    if count != len(expected):
        books.violations.append(f"{count} transfers were created by {len(expected)} requests")


async def compare_balances(up_run: RunningUp, books: Books) -> None:
    total, until_s = 0, books.deadline_s
    async with httpx2.AsyncClient(base_url=up_run.base, timeout=30) as http:
        for user in USERS:
            reply = await with_retries(partial(books.balances, http, user), until_s)
            rows = reply.get("balances", [])
            balances = {b["account"]: b["available"] for b in rows if b["asset"] == "USDT"}
            for account, start in START.items():
                expected = start + books.moved[user, account]
                total += int(balances.get(account, "0").replace(".", ""))
                if balances.get(account) != f"{expected}.000000":
                    books.violations.append(f"{user} {account}: {reply}, not {expected}")
        if total != len(USERS) * sum(START.values()) * UNIT:
            books.violations.append(f"the sum of all accounts is {total}")
        transfers = list(books.transfers.values())
        for transfer in books.dice.sample(transfers, min(REPLAYS, len(transfers))):
            reply = await with_retries(partial(books.post, http, transfer), until_s)
            books.note(transfer, reply)


def audit(up_run: RunningUp, books: Books) -> None:
    command = [str(PROGRAM), "audit", "-o", "json", "--data", str(up_run.directory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    try:
        report = json.loads(done.stdout)
    except ValueError:
        books.violations.append(f"no audit: {done.stdout}{done.stderr}")
        return
    if not report["ok"] or report["halted"] or report["assets"]["USDT"]["gap"] != "0":
        books.violations.append(f"the audit failed: {report}")


async def run(plan: Plan, bar: Progress) -> dict[str, Any]:
    started_s = time.monotonic()
    with running_up() as up_run:
        endow(up_run)
        dice = random.Random(plan.seed)
        books = Books(up_run.base, tokens(up_run.directory), random.Random(plan.seed + 1))
        async with relayed(up_run.directory / "postgres" / "cluster") as relay:
            faults = Faults(up_run.directory, relay, up_run.disk, dice)
            loading = asyncio.ensure_future(books.load())
            await faults.terminate()  # Clients that were connected reconnect by the relay.
            faults_ended_s = await inject_all(faults, books, plan, bar)
            books.closing = True
            books.deadline_s = time.monotonic() + TIMEOUT_S
            await loading
            waited_s = books.waited_s(faults_ended_s)
            if waited_s > TIMEOUT_S:
                books.violations.append(f"a transfer ended {waited_s} s after the last fault")
            await compare(up_run, books)
            await asyncio.to_thread(audit, up_run, books)
        return {
            "kills": sum(faults.counts.values()),
            "kills_by_kind": dict(faults.counts),
            "transfers": len(books.transfers),
            "ends": dict(books.states()),
            "violations": books.violations,
            "longest_wait_s": round(waited_s, 1),
            "full_disk": up_run.disk.kind,
            "logs": keep_logs(up_run) if books.violations else None,
            "seconds": round(time.monotonic() - started_s, 1),
            "seed": plan.seed,
        }


def keep_logs(up_run: RunningUp) -> str:
    """Copy the logs of a failed run, and return their directory."""
    copies = Path(tempfile.mkdtemp(prefix="tidegate-crash-"))
    shutil.copytree(up_run.directory / "log", copies, dirs_exist_ok=True)
    for log in (up_run.directory / "postgres").glob("postgres.log*"):
        shutil.copy(log, copies)
    return str(copies)


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt  # The context managers then unmount and stop everything.


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.crash.run", description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--transfers", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, interrupt)
    columns = (TextColumn("{task.description:<60}"), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    with Progress(*columns, TimeElapsedColumn(), console=console) as bar:
        plan = Plan(arguments.kills, arguments.transfers, arguments.seed)
        figures = asyncio.run(run(plan, bar))
    if arguments.output == "json":
        print(json.dumps(figures, indent=2))
    else:
        for kind, count in sorted(figures["kills_by_kind"].items()):
            print(f"  {kind:<30}{count:>6}")
        seconds = figures["seconds"]
        print(f"{figures['kills']} faults, {figures['transfers']} transfers in {seconds} s:")
        print(f"{figures['ends']}; violations: {len(figures['violations'])}")
        print("\n".join(figures["violations"]))
    return 1 if figures["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
