"""A life in one minute: transfers both ways, a refusal, a rollback, and a crash with recovery."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from rich.console import Console

from tidegate.client import Answer, ApiProblem, Client, OutcomeUnknown
from tidegate.commands.console import ApiOptions, CommandError, console
from tidegate.commands.operator import print_books
from tidegate.commands.progress import bar
from tidegate.commands.timeline import print_timeline
from tidegate.postgres import dying_with_us
from tidegate.settings import without_settings

OWNER = 4001
END_S, STOP_S, POLL_S = 60.0, 60.0, 0.1


def demo() -> None:
    """Run everything in a directory of its own and show what Tidegate is for."""
    with tempfile.TemporaryDirectory(prefix="tidegate-demo-") as name, _running(Path(name)):
        access = ApiOptions(Path(name))
        with (
            access.client("operator") as desk,
            access.client("user", OWNER) as owner,
            bar(console()) as shown,
        ):
            steps: Sequence[Callable[[], None]] = (
                lambda: _both_ways(desk, owner),
                lambda: _refusal(desk, owner),
                lambda: _rollback(desk, owner),
                lambda: _crash(Path(name), desk, owner),
                lambda: _conservation(desk),
            )
            for step in shown.track(steps, description="demo"):
                step()


@contextmanager
def _running(directory: Path) -> Iterator[None]:
    words = ["up", "--bare", "--data", str(directory), "--port", "0", "--config", os.devnull]
    with subprocess.Popen(  # noqa: S603  It is this program.
        [sys.executable, "-m", "tidegate.cli", *words],
        env=without_settings(os.environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=dying_with_us(signal.SIGTERM),  # noqa: PLW1509  It calls only the kernel.
    ) as child:
        try:
            assert child.stdout is not None
            assert child.stderr is not None
            relay = threading.Thread(target=_relay, args=(child.stderr,))
            relay.start()
            with Console(stderr=True).status("starting PostgreSQL, core, worker and API"):
                said = child.stdout.readline()
            if not said.startswith("ready "):
                raise CommandError("everything did not start; its message is above")
            yield
        finally:
            child.terminate()
            child.wait(STOP_S)
            relay.join(STOP_S)


def _relay(said: IO[str]) -> None:
    """Through our own standard error, which knows of the bar; the child's would write into it."""
    for line in said:
        print(line, end="", file=sys.stderr)


def _heading(words: str) -> None:
    console().print(f"\n[bold cyan]{words}")


def _deposit(desk: Client) -> None:
    crossing = {"user_id": OWNER, "account": "FUNDING", "asset": "USDT", "amount": "1000"}
    made = desk.deposit({**crossing, "cid": "demo-fund"})
    _tell(desk, made["req_id"])


def _both_ways(desk: Client, owner: Client) -> None:
    _heading("1. A user gets 1000 USDT from outside, and moves money both ways.")
    _deposit(desk)
    for source, target, amount in (("FUNDING", "SPOT", "250"), ("SPOT", "FUNDING", "100")):
        made = owner.transfer(_wish(source, target, amount))
        _tell(desk, made["req_id"])


def _refusal(desk: Client, owner: Client) -> None:
    _heading("2. A refusal: more than there is. Nothing moves.")
    _tell(desk, _refused(owner, _wish("FUNDING", "SPOT", "999999"), "FAILED"))


def _rollback(desk: Client, owner: Client) -> None:
    _heading("3. A rollback: the money has left, the target says no, the money comes back.")
    status = {"user_id": OWNER, "account": "SPOT", "asset": "USDT"}
    desk.account_status({**status, "status": "DISABLED"})
    try:
        _tell(desk, _refused(owner, _wish("FUNDING", "SPOT", "50"), "ROLLED_BACK"))
    finally:
        desk.account_status({**status, "status": "ACTIVE"})


def _crash(directory: Path, desk: Client, owner: Client) -> None:
    _heading("4. A crash: kill -9 the core, the API and the worker while money is on its way.")
    _kill(directory, "core")
    made = owner.transfer(_wish("FUNDING", "SPOT", "75"), wait_s=0)
    for name in ("api", "worker-1"):
        _kill(directory, name)
    _wait_for_end(desk, made["req_id"])
    _tell(desk, made["req_id"], "COMMITTED")


def _conservation(desk: Client) -> None:
    _heading("5. The books of both systems, added up from every operation.")
    report = desk.audit()
    print_books(report)
    if not report["ok"]:
        raise CommandError("the books do not agree")


def _wish(source: str, target: str, amount: str) -> dict[str, object]:
    # Within one life of one directory this name is given once.
    cid = f"demo-{source}-{target}-{amount}"
    return {"from": source, "to": target, "asset": "USDT", "amount": amount, "cid": cid}


def _refused(owner: Client, wish: dict[str, object], state: str) -> str:
    try:
        made = owner.transfer(wish, wait_s=10)
    except ApiProblem as problem:
        if problem.body.get("state") != state:
            raise
        return str(problem.body["req_id"])
    raise CommandError(f"{made['req_id']} was to be refused and is {made['state']}")


def _tell(desk: Client, id_: str, state: str | None = None) -> None:
    life = desk.history(id_)
    print_timeline(life)
    if state is not None and life["transfer"]["state"] != state:
        raise CommandError(f"{id_} was to end as {state}")


def _kill(directory: Path, name: str) -> None:
    pid = (directory / "run" / f"{name}.pid").read_text()
    os.kill(int(pid), signal.SIGKILL)
    console().print(f"  kill -9 {name}")


def _wait_for_end(desk: Client, id_: str) -> Answer:
    waited_s = 0.0
    while waited_s < END_S:
        try:
            life = desk.history(id_)
            if life["transfer"]["lane"] is None:
                return life
        except (OutcomeUnknown, ApiProblem):
            pass  # The API itself is on its way back.
        time.sleep(POLL_S)
        waited_s += POLL_S
    raise CommandError(f"{id_} has not ended after {END_S:g} s")
