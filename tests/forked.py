"""Python programs as children of a test, forked from a process that has imported Tidegate.

Starting Python and importing everything takes about half a second of CPU time, and the tests start
hundreds of programs. A child is a separate process: it is really stopped and killed. The tests that
start the program itself (`tests/running.py`) test its imports.
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
    """`python -m ARGUMENTS`, with the parts of `subprocess.Popen` that tests need.

    The output is written to the log, if one is given, else to `stdout`.
    """

    def __init__(self, arguments: Sequence[str], log: Path | None = None) -> None:
        reader, writer = (None, None) if log else FORKS.Pipe(duplex=False)
        if log is not None:
            log.touch()  # A test that reads it at once finds an empty file, not a missing one.
        self._process = FORKS.Process(
            target=_run, args=(list(arguments), dict(os.environ), log, writer), daemon=True
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid
        self.stdout: IO[str] | None = None
        if reader is not None and writer is not None:
            writer.close()
            self.stdout = os.fdopen(os.dup(reader.fileno()), encoding="utf-8")
            reader.close()

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
        """Kill it if it still runs, and return its exit code."""
        self.kill()
        code = self.wait()
        if self.stdout is not None:
            self.stdout.close()
        return code


def _run(
    arguments: list[str],
    environment: Mapping[str, str],
    log: Path | None,
    output: Connection | None,
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    if log is not None:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 2)
    else:
        assert output is not None
        out = output.fileno()
    os.dup2(out, 1)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    module, *arguments = arguments
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
