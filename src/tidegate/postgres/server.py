"""The embedded PostgreSQL server: one cluster in one directory; it runs as long as its parent."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self
from urllib.parse import quote

from tidegate.postgres.binaries import Binaries, PostgresError, find_binaries
from tidegate.postgres.child import UnixAccount, choose_account, spawn, working_directory
from tidegate.postgres.directories import (
    SOCKET,
    locked,
    runnable,
    socket_directory,
    sync_directory,
)

NO_SETTINGS: Mapping[str, str] = MappingProxyType({})
QUIT_S = 20.0

# Every client that reaches the socket is trusted. So there is no network, and the socket is in the
# cluster's directory, which only its owner and root may enter.
OURS = {
    "listen_addresses": "",
    "unix_socket_directories": ".",
    "unix_socket_permissions": "0700",
    "port": "5432",
}


@dataclass(frozen=True, slots=True)
class ServerTimeouts:
    """How long to wait. The limit for a start is high: recovery after a crash can take minutes."""

    start_s: float = 600.0
    stop_s: float = 60.0


class Server:
    """A PostgreSQL server whose files are in the subdirectory `postgres` of `directory`."""

    def __init__(
        self,
        directory: Path,
        binaries: Binaries | None = None,
        settings: Mapping[str, str] = NO_SETTINGS,
        timeouts: ServerTimeouts = ServerTimeouts(),  # noqa: B008  It is frozen.
    ) -> None:
        if refused := sorted(OURS.keys() & settings.keys()):
            raise PostgresError(f"the embedded PostgreSQL sets {', '.join(refused)} itself")
        self._home = directory.absolute() / "postgres"
        self._cluster = self._home / "cluster"
        self._binaries = binaries
        self._settings = {**settings, **OURS}
        self._timeouts = timeouts
        self._held = ExitStack()
        self._host = self._cluster
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def log_path(self) -> Path:
        """The log of this run. The log of the previous run is beside it with the suffix `.1`."""
        return self._home / "postgres.log"

    @property
    def pid(self) -> int:
        assert self._child is not None, "the server is not started"
        return self._child.pid

    def url(self, database: str = "postgres") -> str:
        """Return the URL by which our user, or root, connects as the superuser."""
        host = quote(os.fsencode(self._host), safe="")
        return f"postgresql://postgres@/{quote(database, safe='')}?host={host}&port=5432"

    def start(self) -> None:
        """Create the cluster if needed, start the server, and wait until it accepts connections."""
        assert self._child is None, "the server is already started"
        if sys.platform != "linux":
            raise PostgresError("the embedded PostgreSQL needs Linux: set DATABASE_URL")
        with ExitStack() as held:
            try:
                self._start(held)
            except OSError as error:
                raise PostgresError(f"PostgreSQL cannot use {self._home}: {error}") from error
            self._held = held.pop_all()

    def stop(self) -> None:
        """Stop the server, if it runs, and wait for its end."""
        self._held.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _start(self, held: ExitStack) -> None:
        self._make_home()
        if held.enter_context(locked(self._home)) is None:
            raise PostgresError(f"another Tidegate runs its PostgreSQL in {self._home}")
        account = choose_account(self._cluster)
        wanted = self._binaries or find_binaries(major=_major(self._cluster))
        binaries = held.enter_context(runnable(wanted, account))
        log = self._open_log(held)
        if not self._cluster.exists():
            self._make_cluster(binaries, account, log)
        cluster = held.enter_context(locked(self._cluster, self._timeouts.start_s))
        if cluster is None:
            raise PostgresError(
                f"a PostgreSQL of a killed Tidegate still runs on {self._cluster}: stop it first"
            )
        _remove_stale_lock_files(self._cluster, account)
        self._host = held.enter_context(socket_directory(self._cluster))
        settings = [f"--{name}={value}" for name, value in self._settings.items()]
        command = [str(binaries.postgres), "-D", f"/proc/self/fd/{cluster}", *settings]
        self._child = spawn(command, account, log, [cluster])
        held.callback(self._end)
        self._wait_until_ready(self._child)

    def _make_home(self) -> None:
        self._home.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._home.mkdir(mode=0o700)
        except FileExistsError:
            return
        sync_directory(self._home.parent)

    def _open_log(self, held: ExitStack) -> int:
        if self.log_path.exists():
            self.log_path.replace(self.log_path.with_name("postgres.log.1"))
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
        log = os.open(self.log_path, flags, 0o600)
        held.callback(os.close, log)
        # If root runs the server of another user, that user must be able to read the log.
        owner = self._home.stat()
        if owner.st_uid != os.geteuid():
            os.fchown(log, owner.st_uid, owner.st_gid)
        return log

    def _make_cluster(self, binaries: Binaries, account: UnixAccount | None, log: int) -> None:
        """Create it under a temporary name and rename it: "cluster" is always complete."""
        for leftover in self._home.glob("initdb-*"):
            with locked(leftover, self._timeouts.start_s):
                shutil.rmtree(leftover)
        fresh = Path(tempfile.mkdtemp(prefix="initdb-", dir=self._home))
        if account is not None:
            os.chown(fresh, account.uid, account.gid)
        with locked(fresh) as descriptor:
            assert descriptor is not None, "no other process knows the new directory"
            command = _initdb_command(binaries, descriptor)
            code = _run(spawn(command, account, log, [descriptor]), self._timeouts.start_s)
        if code != 0:
            raise PostgresError(self._with_log(f"initdb failed (exit {code})"))
        fresh.rename(self._cluster)
        sync_directory(self._home)

    def _wait_until_ready(self, child: subprocess.Popen[bytes]) -> None:
        """Wait while the server starts or recovers. Fail if it ends or the time is over."""
        deadline = time.monotonic() + self._timeouts.start_s
        while not _ready(self._cluster, child.pid):
            if time.monotonic() >= deadline:
                message = f"PostgreSQL is not ready after {self._timeouts.start_s:g} s"
                raise PostgresError(self._with_log(message))
            try:
                code = child.wait(timeout=0.01)
            except subprocess.TimeoutExpired:
                continue
            raise PostgresError(self._with_log(f"PostgreSQL did not start (exit {code})"))

    def _with_log(self, message: str) -> str:
        lines = self.log_path.read_text("utf-8", "replace").splitlines()
        return "\n  ".join([f"{message}; the end of {self.log_path}:", *lines[-8:]])

    def _end(self) -> None:
        child, self._child = self._child, None
        assert child is not None, "the server is started"
        # Fast shutdown; then immediate shutdown, after which the next start runs recovery.
        for ending, wait_s in ((signal.SIGINT, self._timeouts.stop_s), (signal.SIGQUIT, QUIT_S)):
            child.send_signal(ending)
            try:
                child.wait(wait_s)
            except subprocess.TimeoutExpired:
                continue
            return
        child.kill()
        child.wait()


@contextmanager
def database_url(
    environ: Mapping[str, str],
    directory: Path,
    settings: Mapping[str, str] = NO_SETTINGS,
) -> Iterator[str]:
    """Yield `DATABASE_URL`, or else the URL of an embedded server that runs meanwhile."""
    if url := environ.get("DATABASE_URL"):
        yield url
        return
    with Server(directory, settings=settings) as server:
        yield server.url()


def _initdb_command(binaries: Binaries, descriptor: int) -> list[str]:
    # Text sorts by code point, so that an upgrade of the C library cannot corrupt an index. From
    # version 17 on, PostgreSQL has its own rules for letters.
    builtin = ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    return [
        str(binaries.initdb),
        f"--pgdata=/proc/self/fd/{descriptor}",
        "--username=postgres",
        "--auth-local=trust",
        "--auth-host=reject",
        "--encoding=UTF8",
        "--locale=C",
        "--data-checksums",
        *(builtin if binaries.version[0] >= 17 else []),
    ]


def _run(child: subprocess.Popen[bytes], timeout_s: float) -> int:
    try:
        return child.wait(timeout_s)
    except subprocess.TimeoutExpired as error:
        raise PostgresError(f"initdb has not finished after {timeout_s:g} s") from error
    finally:
        child.kill()
        child.wait()


def _major(cluster: Path) -> int | None:
    try:
        return int((cluster / "PG_VERSION").read_text())
    except FileNotFoundError:
        return None


def _ready(cluster: Path, pid: int) -> bool:
    """Read the status that the server writes as the eighth line of its lock file."""
    lines = _lock_file(cluster)
    return len(lines) >= 8 and int(lines[0]) == pid and lines[7].strip() == b"ready"


def _lock_file(cluster: Path) -> list[bytes]:
    try:
        return (cluster / "postmaster.pid").read_bytes().splitlines()
    except FileNotFoundError:
        return []


def _remove_stale_lock_files(cluster: Path, account: UnixAccount | None) -> None:
    """Remove the lock files of a killed server.

    Their pid may meanwhile belong to another program. PostgreSQL then refuses to start, which
    happens often in a container, where pids are small numbers. A server's working directory is
    its cluster, so a program with another working directory is not a server.
    """
    lines = _lock_file(cluster)
    if not lines or not lines[0].strip():
        return
    pid = abs(int(lines[0]))
    directory = working_directory(pid, account)
    if directory is None:
        # Dead, or a process of another user: PostgreSQL handles both cases itself.
        return
    if directory == (cluster.stat().st_dev, cluster.stat().st_ino):
        raise PostgresError(f"PostgreSQL (pid {pid}) already runs on {cluster}: stop it first")
    for name in ("postmaster.pid", f"{SOCKET}.lock"):
        (cluster / name).unlink(missing_ok=True)
