"""Everything as `tidegate up` runs it: started, watched and ended as a user would."""

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
    """A running `tidegate up` and the directory it works in."""

    def __init__(self, directory: Path, child: subprocess.Popen[str], said: str) -> None:
        self.directory, self.child, self.said = directory, child, said
        self.url = said.removeprefix("ready ").strip()

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

    def tidegate(self, *words: str, code: int = 0) -> str:
        said = tidegate(*words, "--data", str(self.directory))
        assert said.returncode == code, said.stderr + said.stdout
        return said.stdout if code == 0 else said.stderr

    def json(self, *words: str) -> Any:
        return json.loads(self.tidegate(*words, "-o", "json"))

    def balances(self, user: int = 4001) -> dict[tuple[str, str], str]:
        found = self.json("balances", "--user", str(user))["balances"]
        return {(row["account"], row["asset"]): row["available"] for row in found}

    def end(self, number: signal.Signals) -> int:
        self.child.send_signal(number)
        return self.child.wait(STOP_S)


def tidegate(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env=None if env is None else os.environ | env,
    )


@contextmanager
def running(directory: Path, *words: str) -> Iterator[Up]:
    command = [str(PROGRAM), "up", "--data", str(directory), *(words or ("--port", "0"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            said = child.stdout.readline()
            assert said.startswith("ready "), "see the message above"
            yield Up(directory, child, said)
        finally:
            child.terminate()
            child.wait(STOP_S)


def descendants(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for each in (task / "children").read_text().split():
            found += [int(each), *descendants(int(each))]
    return found


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False


def eventually(true: Callable[[], bool], within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, "it did not become so in time"
        time.sleep(0.05)
