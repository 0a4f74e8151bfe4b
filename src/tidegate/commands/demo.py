"""The demo: transfers both ways, a refusal, a rollback, a crash with recovery, and an audit."""

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
    """Run everything in a temporary directory and show transfers, a rollback and a crash."""
    with tempfile.TemporaryDirectory(prefix="tidegate-demo-") as name, _running(Path(name)):
        access = ApiOptions(Path(name))
        with (
            access.client("operator") as operator,
            access.client("user", OWNER) as owner,
            bar(console()) as progress,
        ):
            steps: Sequence[Callable[[], None]] = (
                lambda: _both_ways(operator, owner),
                lambda: _refusal(operator, owner),
                lambda: _rollback(operator, owner),
                lambda: _crash(Path(name), operator, owner),
                lambda: _conservation(operator),
            )
            for step in progress.track(steps, description="demo"):
                step()


@contextmanager
def _running(directory: Path) -> Iterator[None]:
    arguments = ["up", "--bare", "--data", str(directory), "--port", "0", "--config", os.devnull]
    with subprocess.Popen(  # noqa: S603  It is this program.
        [sys.executable, "-m", "tidegate.cli", *arguments],
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
                line = child.stdout.readline()
            if not line.startswith("ready "):
                raise CommandError("the demo did not start: see the message above")
            yield
        finally:
            child.terminate()
            child.wait(STOP_S)
            relay.join(STOP_S)


def _relay(errors: IO[str]) -> None:
    """Print the child's errors on our own stderr, where rich keeps them off the progress bar."""
    for line in errors:
        print(line, end="", file=sys.stderr)


def _heading(text: str) -> None:
    console().print(f"\n[bold cyan]{text}")


def _deposit(operator: Client) -> None:
    deposit = {"user_id": OWNER, "account": "FUNDING", "asset": "USDT", "amount": "1000"}
    transfer = operator.deposit({**deposit, "cid": "demo-fund"})
    _show(operator, transfer["req_id"])


def _both_ways(operator: Client, owner: Client) -> None:
    _heading("1. A deposit of 1000 USDT, then transfers in both directions.")
    _deposit(operator)
    for source, target, amount in (("FUNDING", "SPOT", "250"), ("SPOT", "FUNDING", "100")):
        transfer = owner.transfer(_request(source, target, amount))
        _show(operator, transfer["req_id"])


def _refusal(operator: Client, owner: Client) -> None:
    _heading("2. A refusal: the balance is too low. No money moves.")
    _show(operator, _refused(owner, _request("FUNDING", "SPOT", "999999"), "FAILED"))


def _rollback(operator: Client, owner: Client) -> None:
    _heading("3. A rollback: the source is debited, the target refuses, the source is refunded.")
    status = {"user_id": OWNER, "account": "SPOT", "asset": "USDT"}
    operator.account_status({**status, "status": "DISABLED"})
    try:
        _show(operator, _refused(owner, _request("FUNDING", "SPOT", "50"), "ROLLED_BACK"))
    finally:
        operator.account_status({**status, "status": "ACTIVE"})


def _crash(directory: Path, operator: Client, owner: Client) -> None:
    _heading("4. A crash: kill -9 the core, the API and the worker during a transfer.")
    _kill(directory, "core")
    transfer = owner.transfer(_request("FUNDING", "SPOT", "75"), wait_s=0)
    for name in ("api", "worker-1"):
        _kill(directory, name)
    _wait_for_end(operator, transfer["req_id"])
    _show(operator, transfer["req_id"], "COMMITTED")


def _conservation(operator: Client) -> None:
    _heading("5. An audit: the books of both systems, summed from every operation.")
    report = operator.audit()
    print_books(report)
    if not report["ok"]:
        raise CommandError("the books do not agree")


def _request(source: str, target: str, amount: str) -> dict[str, object]:
    # Unique, because the demo makes each of these transfers once in a new directory.
    cid = f"demo-{source}-{target}-{amount}"
    return {"from": source, "to": target, "asset": "USDT", "amount": amount, "cid": cid}


def _refused(owner: Client, request: dict[str, object], state: str) -> str:
    try:
        transfer = owner.transfer(request, wait_s=10)
    except ApiProblem as problem:
        if problem.body.get("state") != state:
            raise
        return str(problem.body["req_id"])
    raise CommandError(f"{transfer['req_id']} should be {state} and is {transfer['state']}")


def _show(operator: Client, id_: str, state: str | None = None) -> None:
    life = operator.history(id_)
    print_timeline(life)
    if state is not None and life["transfer"]["state"] != state:
        raise CommandError(f"{id_} should be {state} and is {life['transfer']['state']}")


def _kill(directory: Path, name: str) -> None:
    pid = (directory / "run" / f"{name}.pid").read_text()
    os.kill(int(pid), signal.SIGKILL)
    console().print(f"  kill -9 {name}")


def _wait_for_end(operator: Client, id_: str) -> Answer:
    waited_s = 0.0
    while waited_s < END_S:
        try:
            life = operator.history(id_)
            if life["transfer"]["lane"] is None:
                return life
        except (OutcomeUnknown, ApiProblem):
            pass  # The API is restarting.
        time.sleep(POLL_S)
        waited_s += POLL_S
    raise CommandError(f"{id_} has not ended after {END_S:g} s")
