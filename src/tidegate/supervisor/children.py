"""Child programs that are kept running: Tidegate's own and PostgreSQL. They end with the parent."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn, Protocol

from tidegate.postgres import dying_with_us
from tidegate.settings import Settings, as_environment, without_settings

LARGEST_LOG = 8 * 2**20
STOP_S = 30.0  # Longer than the API's own limits for its requests and then its engine.
# The backoff between two starts; a child that ran for HEALTHY_S starts again at the first step.
FIRST_S, LONGEST_S, HEALTHY_S = 0.1, 5.0, 10.0


class CannotRun(Exception):
    """The program cannot run; the message says why and what to do in one line."""


class EndRequested(BaseException):
    """A signal requested the end. Not an Exception: no `except Exception` may catch it."""


class Program(Protocol):
    """A program that is kept running: one of ours, or PostgreSQL."""

    @property
    def pid(self) -> int: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...


class ChildProgram:
    """One of our own commands as a child. The kernel kills it when this process dies."""

    def __init__(
        self,
        arguments: Sequence[str],
        log: Path | None,  # None: it shares our stdout and stderr.
        environ: Callable[[], dict[str, str]],
        inherited: Sequence[int] = (),
    ) -> None:
        self._command = [sys.executable, *arguments]
        self._log = log
        self._environ = environ
        self._inherited = inherited
        self.code: int | None = None  # The last exit code; negative: the signal that ended it.
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._child is not None, "the child is not started"
        return self._child.pid

    def start(self) -> None:
        if self._log is None:
            self._start(None)
            return
        if self._log.exists() and self._log.stat().st_size > LARGEST_LOG:
            self._log.replace(self._log.with_suffix(".log.1"))
        with self._log.open("ab") as log:
            self._start(log.fileno())

    def _start(self, output: int | None) -> None:
        self._child = subprocess.Popen(  # noqa: S603  This is our own program.
            self._command,
            env=self._environ(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=tuple(self._inherited),
            # Ctrl-C reaches every process of a session, but we stop the children in our order.
            start_new_session=True,
            preexec_fn=dying_with_us(signal.SIGKILL),  # noqa: PLW1509  Only a system call.
        )

    def terminate(self) -> None:
        if self._child is not None:
            self._child.terminate()

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()

    def stop(self, within_s: float = STOP_S) -> None:
        """Terminate the child, and kill it if it does not end in time: a crash is safe."""
        child, self._child = self._child, None
        if child is None:
            return
        child.terminate()
        try:
            child.wait(within_s)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        self.code = child.returncode

    def last_log_line(self) -> str:
        if self._log is None or not self._log.exists():
            return "it has no log"
        lines = self._log.read_text("utf-8", "replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "its log is empty")


class Child:
    """A program that is kept running, with its failures and the time of its next start."""

    def __init__(self, name: str, program: Program, run_dir: Path | None = None) -> None:
        self.name = name
        self.program = program
        self.failures = 0
        self.due_s: float | None = None
        self._since_s = 0.0
        self._pidfd: int | None = None
        self._file = None if run_dir is None else run_dir / f"{name}.pid"

    @property
    def pidfds(self) -> list[int]:
        return [] if self._pidfd is None else [self._pidfd]

    def start(self) -> None:
        self.due_s = None
        self.program.start()
        self._since_s = time.monotonic()
        self._pidfd = os.pidfd_open(self.program.pid)
        if self._file is not None:
            write_atomically(self._file, f"{self.program.pid}\n")

    def stop(self) -> None:
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        self.program.stop()

    def remove(self) -> None:
        """Stop for good and remove the pid file."""
        self.stop()
        if self._file is not None:
            self._file.unlink(missing_ok=True)

    def record_death(self) -> None:
        """Clean up after the program died, and set when to start it again."""
        self.stop()
        lived_s = time.monotonic() - self._since_s
        self.failures = 1 if lived_s > HEALTHY_S else self.failures + 1
        wait_s = min(FIRST_S * 2 ** (self.failures - 1), LONGEST_S)
        self.due_s = time.monotonic() + wait_s

    def fail(self) -> None:
        self.failures += 1
        self.due_s = time.monotonic() + LONGEST_S


def keep_running(
    children: Sequence[Child], restart: Callable[[Child], None], wait_s: float | None
) -> None:
    """Wait until a child dies or is due for a restart, and restart every child that is due."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_IGN:
        # `end` has run, but its exception was lost, for example in a finaliser: raise it again.
        raise EndRequested
    now = time.monotonic()
    dues = [max(child.due_s - now, 0.0) for child in children if child.due_s is not None]
    timeout = min([*dues, *([wait_s] if wait_s is not None else [])], default=None)
    pidfds = [pidfd for child in children for pidfd in child.pidfds]
    dead, _, _ = select.select(pidfds, [], [], timeout)
    for child in children:
        if set(child.pidfds) & set(dead):
            child.record_death()
        if child.due_s is not None and child.due_s <= time.monotonic():
            restart(child)


def child_environment(settings: Settings) -> dict[str, str]:
    """Return our environment with exactly these settings, instead of those it contains."""
    others = without_settings(os.environ)
    return others | as_environment(settings) | {"PYTHONUNBUFFERED": "1"}


def end_on_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)


def end(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001
    for other in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)  # A second signal must not interrupt the shutdown.
    raise EndRequested


def write_atomically(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace a file in one step: a reader sees the old or the new text, never a part."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with os.fdopen(os.open(fresh, flags, mode), "w", encoding="utf-8") as file:
        file.write(text)
    fresh.replace(path)


def report(message: str) -> None:
    print(f"tidegate: {message}", file=sys.stderr, flush=True)
