"""`tidegate up` as a child process: started, used and stopped as a user would do it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAM = Path(sys.executable).with_name("tidegate")
START_S, STOP_S = 120.0, 60.0


class Up:
    """A running `tidegate up` and its directory."""

    def __init__(self, directory: Path, child: subprocess.Popen[str], ready_line: str) -> None:
        self.directory, self.child, self.ready_line = directory, child, ready_line
        self.url = ready_line.removeprefix("ready ").strip()

    @property
    def endpoints(self) -> dict[str, str]:
        found: dict[str, str] = json.loads((self.directory / "run/endpoints.json").read_text())
        return found

    def pid(self, name: str) -> int:
        return int((self.directory / f"run/{name}.pid").read_text())

    def pids(self) -> dict[str, int]:
        return {path.stem: self.pid(path.stem) for path in (self.directory / "run").glob("*.pid")}

    def descendants(self) -> list[int]:
        return descendants(self.child.pid)

    def tidegate(self, *arguments: str, code: int = 0) -> str:
        done = tidegate(*arguments, "--data", str(self.directory))
        assert done.returncode == code, done.stderr + done.stdout
        return done.stdout if code == 0 else done.stderr

    def json(self, *arguments: str) -> Any:
        return json.loads(self.tidegate(*arguments, "-o", "json"))

    def balances(self, user: int = 4001) -> dict[tuple[str, str], str]:
        found = self.json("balances", "--user", str(user))["balances"]
        return {(row["account"], row["asset"]): row["available"] for row in found}

    def end(self, number: signal.Signals) -> int:
        self.child.send_signal(number)
        return self.child.wait(STOP_S)


def tidegate(
    *arguments: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env=None if env is None else os.environ | env,
    )


@contextmanager
def running(directory: Path, *arguments: str) -> Iterator[Up]:
    command = [str(PROGRAM), "up", "--data", str(directory), *(arguments or ("--port", "0"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            ready_line = child.stdout.readline()
            assert ready_line.startswith("ready "), "tidegate up failed: see its message above"
            yield Up(directory, child, ready_line)
        finally:
            child.terminate()
            child.wait(STOP_S)


def descendants(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *descendants(int(child))]
    return found


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False


def eventually(is_true: Callable[[], bool], within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not is_true():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.05)
