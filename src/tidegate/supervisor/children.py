"""Programs that are kept running: ours, and PostgreSQL. Each ends when we do."""

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
STOP_S = 30.0  # Longer than the API's own bounds: for its requests, then for its engine.
FIRST_S, LONGEST_S, HEALTHY_S = 0.1, 5.0, 10.0  # Between two starts; and what forgets failures.


class CannotRun(Exception):
    """It cannot run; one line says why, and what to do."""


class EndRequested(BaseException):
    """A signal asks for the end. Whatever is under way must not take it for a failure of its own,
    as it may every Exception.
    """


class Program(Protocol):
    """What is kept running: one of ours, or PostgreSQL."""

    @property
    def pid(self) -> int: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...


class ChildProgram:
    """One of our own commands as a child, which ends when we do, whatever ends us."""

    def __init__(
        self,
        words: Sequence[str],
        log: Path | None,  # None: it says what it says where we do.
        environ: Callable[[], dict[str, str]],
        inherited: Sequence[int] = (),
    ) -> None:
        self._command = [sys.executable, *words]
        self._log = log
        self._environ = environ
        self._inherited = inherited
        self.code: int | None = None  # With which it ended last; below 0, by which signal.
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._child is not None, "it is not started"
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
        self._child = subprocess.Popen(  # noqa: S603  It is this program.
            self._command,
            env=self._environ(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=tuple(self._inherited),
            # Ctrl-C reaches a whole session; the order of the end is ours to choose.
            start_new_session=True,
            preexec_fn=dying_with_us(signal.SIGKILL),  # noqa: PLW1509  It calls the kernel.
        )

    def ask_to_end(self) -> None:
        if self._child is not None:
            self._child.terminate()

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()

    def stop(self, within_s: float = STOP_S) -> None:
        """In order if it will, and else by force: a crash is safe."""
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

    def last_words(self) -> str:
        there = self._log is not None and self._log.exists()
        lines = self._log.read_text("utf-8", "replace").split("\n") if self._log and there else []
        return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


class Child:
    """A program that is kept running: how often it has failed, and when it starts again."""

    def __init__(self, name: str, program: Program, room: Path | None = None) -> None:
        self.name = name
        self.program = program
        self.failures = 0
        self.due_s: float | None = None
        self._since_s = 0.0
        self._pidfd: int | None = None
        self._file = None if room is None else room / f"{name}.pid"

    @property
    def pidfds(self) -> list[int]:
        return [] if self._pidfd is None else [self._pidfd]

    def start(self) -> None:
        self.due_s = None
        self.program.start()
        self._since_s = time.monotonic()
        self._pidfd = os.pidfd_open(self.program.pid)
        if self._file is not None:
            write_whole(self._file, f"{self.program.pid}\n")

    def stop(self) -> None:
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        self.program.stop()

    def leave(self) -> None:
        """For good, and without a trace."""
        self.stop()
        if self._file is not None:
            self._file.unlink(missing_ok=True)

    def notice(self) -> None:
        """It has died: take note of when to start it again."""
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
    """Wait until a child dies or is due, and start again what can be."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_IGN:
        raise EndRequested  # It was raised before, where nobody could be told: in a finaliser, say.
    now = time.monotonic()
    dues = [max(child.due_s - now, 0.0) for child in children if child.due_s is not None]
    timeout = min([*dues, *([wait_s] if wait_s is not None else [])], default=None)
    pidfds = [pidfd for child in children for pidfd in child.pidfds]
    dead, _, _ = select.select(pidfds, [], [], timeout)
    for child in children:
        if set(child.pidfds) & set(dead):
            child.notice()
        if child.due_s is not None and child.due_s <= time.monotonic():
            restart(child)


def child_environment(settings: Settings) -> dict[str, str]:
    """Ours, but for settings: the child gets those that we have settled on, and no others."""
    kept = without_settings(os.environ)
    return kept | as_environment(settings) | {"PYTHONUNBUFFERED": "1"}


def end_on_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)


def end(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)  # The end has begun, and is not to be interrupted.
    raise EndRequested


def write_whole(path: Path, text: str, mode: int = 0o644) -> None:
    """A reader sees the file as it was or as it is, never half of it, and only if it may."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with os.fdopen(os.open(fresh, flags, mode), "w", encoding="utf-8") as file:
        file.write(text)
    fresh.replace(path)


def say(words: str) -> None:
    print(f"tidegate: {words}", file=sys.stderr, flush=True)
