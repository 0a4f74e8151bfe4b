"""Faults under load: `python -m tests.crash.run --kills 50 --transfers 2000 [--seed N] [-o json]`.

Everything that `tidegate up` runs is killed, stopped, cut off and starved while clients that keep
their own books post transfers. To start again what died is the supervisor's work, not ours. In the
end every transfer has ended, and what the clients were told is what the systems hold.
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

from tests.crash.books import FUNDING_CLOSED, SPOT_CLOSED, USERS, Books, patiently
from tests.crash.faults import PATIENCE_S, Faults, Harmless, eventually
from tests.crash.relay import relayed
from tests.crash.small_disk import Room, small_room
from tidegate.client import Client
from tidegate.postgres import dying_with_us
from tidegate.settings import without_settings
from tidegate.supervisor.demo_tokens import token

PROGRAM = Path(sys.executable).with_name("tidegate")
UNIT = 10**6
START = {"FUNDING": 1_000, "SPOT": 500}
TOKEN_S = 300.0  # A token lives for fifteen minutes.
BREATH = 12  # Transfers that must end between two faults, so that each hits something at work.
REPLAYS = 40
SLOWEST_RATE = 5  # Transfers per second, without faults.
SCHEMA = "tidegate_store"
# A lease shorter than a silence: somebody else takes over, and the silent one comes back.
SETTINGS = {"TIDEGATE_LEASE_S": "3"}


class Plan(NamedTuple):
    kills: int
    transfers: int
    seed: int


class House(NamedTuple):
    directory: Path
    base: str
    room: Room


@contextmanager
def house() -> Iterator[House]:
    """`tidegate up` in a directory with a short name: a socket's path has little room."""
    with tempfile.TemporaryDirectory(prefix="tg") as name:
        directory = Path(name) / "house"
        with small_room(directory / "core") as room, (Path(name) / "up.log").open("w+") as log:
            words = [str(PROGRAM), "up", "--data", str(directory), "--port", "0", "--bare"]
            with subprocess.Popen(
                words,
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
                    yield House(directory, ready.removeprefix("ready "), room)
                finally:
                    up.send_signal(signal.SIGINT)
                    up.wait(90)


def endow(built: House) -> None:
    """Money for everybody, and two accounts that may not be credited."""
    with Client(built.base, token(built.directory, "crash", "operator")) as client:
        for user in USERS:
            for account, amount in START.items():
                whose = {"user_id": user, "account": account, "asset": "USDT"}
                client.deposit({**whose, "amount": str(amount), "cid": f"start-{user}-{account}"})
        for user, account in ((SPOT_CLOSED, "SPOT"), (FUNDING_CLOSED, "FUNDING")):
            whose = {"user_id": user, "account": account, "asset": "USDT"}
            client.account_status({**whose, "status": "DISABLED"})


def tokens(directory: Path) -> Callable[[int], str]:
    kept: dict[int, tuple[float, str]] = {}

    def of(user: int) -> str:
        made_s, text = kept.get(user, (0.0, ""))
        if time.monotonic() - made_s > TOKEN_S or not text:
            text = token(directory, str(user), "user")
            kept[user] = time.monotonic(), text
        return text

    return of


async def torment(faults: Faults, books: Books, plan: Plan, bar: Progress) -> float:
    """All faults and enough transfers. Returns when the last fault was over."""
    shown = bar.add_task("faults", total=plan.kills)
    healed_s = time.monotonic()
    for kind in faults.order(plan.kills):
        try:
            await breathe(books, books.ended + BREATH)
            await asyncio.sleep(faults.dice.random() / 2)
            await faults.commit(kind)
        except Harmless as fault:
            books.violations.append(f"«{kind}» did not come about: {fault}")
        healed_s = time.monotonic()
        bar.update(shown, advance=1, description=f"{kind}, {len(books.wishes)} transfers")
    slowest_s = PATIENCE_S + plan.transfers / SLOWEST_RATE
    await eventually(lambda: len(books.wishes) >= plan.transfers, "the load is slow", slowest_s)
    return healed_s


async def breathe(books: Books, enough: int) -> None:
    await eventually(lambda: books.ended >= enough, "transfers do not end any more")


async def compare(built: House, books: Books) -> None:
    """What the clients were told, beside what the API, the store and the audit say."""
    await compare_balances(built, books)
    found = json.loads((built.directory / "run" / "endpoints.json").read_text())
    async with await psycopg.AsyncConnection.connect(found["postgres"]) as database:
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
    told = {cid: (wish.state, 1) for cid, wish in books.wishes.items()}
    books.violations += [
        f"{cid}: told {told.get(cid)}, stored {stored.get(cid)}"
        for cid in told.keys() | stored.keys()
        if told.get(cid) != stored.get(cid)
    ]
    if count != len(told):
        books.violations.append(f"{count} transfers were born of {len(told)} requests")


async def compare_balances(built: House, books: Books) -> None:
    total, until_s = 0, books.deadline_s
    async with httpx2.AsyncClient(base_url=built.base, timeout=30) as http:
        for user in USERS:
            said = await patiently(partial(books.balances, http, user), until_s)
            found = said.get("balances", [])
            held = {b["account"]: b["available"] for b in found if b["asset"] == "USDT"}
            for account, start in START.items():
                wanted = start + books.moved[user, account]
                total += int(held.get(account, "0").replace(".", ""))
                if held.get(account) != f"{wanted}.000000":
                    books.violations.append(f"{user} {account}: {said}, not {wanted}")
        if total != len(USERS) * sum(START.values()) * UNIT:
            books.violations.append(f"the sum of all accounts is {total}")
        some = books.dice.sample(list(books.wishes.values()), min(REPLAYS, len(books.wishes)))
        for wish in some:
            books.note(wish, await patiently(partial(books.post, http, wish), until_s))


def audit(built: House, books: Books) -> None:
    words = [str(PROGRAM), "audit", "-o", "json", "--data", str(built.directory)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    try:
        said = json.loads(done.stdout)
    except ValueError:
        books.violations.append(f"no audit: {done.stdout}{done.stderr}")
        return
    if not said["ok"] or said["halted"] or said["assets"]["USDT"]["gap"] != "0":
        books.violations.append(f"the audit says {said}")


async def run(plan: Plan, bar: Progress) -> dict[str, Any]:
    began_s = time.monotonic()
    with house() as built:
        endow(built)
        dice = random.Random(plan.seed)
        books = Books(built.base, tokens(built.directory), random.Random(plan.seed + 1))
        async with relayed(built.directory / "postgres" / "cluster") as relay:
            faults = Faults(built.directory, relay, built.room, dice)
            loading = asyncio.ensure_future(books.load())
            await faults.terminate()  # Whoever was connected before comes back by the relay.
            healed_s = await torment(faults, books, plan, bar)
            books.closing = True
            books.deadline_s = time.monotonic() + PATIENCE_S
            await loading
            waited_s = books.waited_s(healed_s)
            if waited_s > PATIENCE_S:
                books.violations.append(f"a transfer ended {waited_s} s after the last fault")
            await compare(built, books)
            await asyncio.to_thread(audit, built, books)
        return {
            "kills": sum(faults.counts.values()),
            "kills_by_kind": dict(faults.counts),
            "transfers": len(books.wishes),
            "ends": dict(books.states()),
            "violations": books.violations,
            "longest_wait_s": round(waited_s, 1),
            "full_disk": built.room.kind,
            "logs": keep_logs(built) if books.violations else None,
            "seconds": round(time.monotonic() - began_s, 1),
            "seed": plan.seed,
        }


def keep_logs(built: House) -> str:
    """Where to look for what happened."""
    kept = Path(tempfile.mkdtemp(prefix="tidegate-crash-"))
    shutil.copytree(built.directory / "log", kept, dirs_exist_ok=True)
    for each in (built.directory / "postgres").glob("postgres.log*"):
        shutil.copy(each, kept)
    return str(kept)


def ended_by_a_signal(*_: object) -> None:
    raise KeyboardInterrupt  # So that nothing stays mounted or running.


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.crash.run", description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--transfers", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, ended_by_a_signal)
    columns = (TextColumn("{task.description:<60}"), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    with Progress(*columns, TimeElapsedColumn(), console=console) as bar:
        said = asyncio.run(run(Plan(chosen.kills, chosen.transfers, chosen.seed), bar))
    if chosen.output == "json":
        print(json.dumps(said, indent=2))
    else:
        for kind, count in sorted(said["kills_by_kind"].items()):
            print(f"  {kind:<30}{count:>6}")
        print(f"{said['kills']} faults over {said['transfers']} transfers in {said['seconds']} s:")
        print(f"{said['ends']}; violations: {len(said['violations'])}")
        print("\n".join(said["violations"]))
    return 1 if said["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
