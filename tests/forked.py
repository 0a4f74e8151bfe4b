"""Python programs as children of a test, forked from a process that has imported Tidegate.

To start Python and import everything takes about half a second of a processor, and the tests
start programs by the hundred. A child is a process of its own: it is stopped and killed for real.
Imports are tried by the tests that start the program itself (`tests/running.py`).
"""

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.preloaded"])


class Forked:
    """`python -m WORDS`, with what a test asks of a `subprocess.Popen`.

    What it says goes to the log, if one is given, else to `stdout`.
    """

    def __init__(self, words: Sequence[str], log: Path | None = None) -> None:
        ours, theirs = (None, None) if log else FORKS.Pipe(duplex=False)
        if log is not None:
            log.touch()  # Who reads it at once finds nothing in it, and not no log.
        self._process = FORKS.Process(
            target=_run, args=(list(words), dict(os.environ), log, theirs), daemon=True
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid
        self.stdout: IO[str] | None = None
        if ours is not None and theirs is not None:
            theirs.close()
            self.stdout = os.fdopen(os.dup(ours.fileno()), encoding="utf-8")
            ours.close()

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def ended(self) -> int:
        """Killed, if it still ran. Nothing of it is left."""
        self.kill()
        code = self.wait()
        if self.stdout is not None:
            self.stdout.close()
        return code


def _run(
    words: list[str], environment: Mapping[str, str], log: Path | None, said: Connection | None
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    if log is not None:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 2)
    else:
        assert said is not None
        out = said.fileno()
    os.dup2(out, 1)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    module, *arguments = words
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
