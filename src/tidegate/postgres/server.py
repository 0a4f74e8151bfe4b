"""The embedded PostgreSQL server: one cluster in one directory, alive while its parent is."""

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

# Everybody who reaches the socket is trusted, so nobody else may reach it: no network, and a
# socket inside the cluster's own directory, which only its owner and root may enter.
OURS = {
    "listen_addresses": "",
    "unix_socket_directories": ".",
    "unix_socket_permissions": "0700",
    "port": "5432",
}


@dataclass(frozen=True, slots=True)
class ServerTimeouts:
    """How long to wait; a start is generous, because recovery after a crash may take minutes."""

    start_s: float = 600.0
    stop_s: float = 60.0


class Server:
    """A PostgreSQL below `directory`, in a subdirectory of its own that nothing else touches."""

    def __init__(
        self,
        directory: Path,
        binaries: Binaries | None = None,
        settings: Mapping[str, str] = NO_SETTINGS,
        bounds: ServerTimeouts = ServerTimeouts(),  # noqa: B008  It is frozen.
    ) -> None:
        if refused := sorted(OURS.keys() & settings.keys()):
            raise PostgresError(f"the embedded PostgreSQL sets {', '.join(refused)} itself")
        self._home = directory.absolute() / "postgres"
        self._cluster = self._home / "cluster"
        self._binaries = binaries
        self._settings = {**settings, **OURS}
        self._bounds = bounds
        self._held = ExitStack()
        self._host = self._cluster
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def log_path(self) -> Path:
        """What this run of the server said; the run before it is beside it, ending in `.1`."""
        return self._home / "postgres.log"

    @property
    def pid(self) -> int:
        assert self._child is not None, "the server is not started"
        return self._child.pid

    def url(self, database: str = "postgres") -> str:
        """Where the user we are, or root, connects as the superuser."""
        host = quote(os.fsencode(self._host), safe="")
        return f"postgresql://postgres@/{quote(database, safe='')}?host={host}&port=5432"

    def start(self) -> None:
        """Make the cluster if there is none, and return when the server takes connections."""
        assert self._child is None, "the server is started"
        if sys.platform != "linux":
            raise PostgresError("the embedded PostgreSQL needs Linux: set DATABASE_URL")
        with ExitStack() as held:
            try:
                self._start(held)
            except OSError as error:
                raise PostgresError(f"PostgreSQL cannot use {self._home}: {error}") from error
            self._held = held.pop_all()

    def stop(self) -> None:
        """End the server and wait for it; without a server, nothing."""
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
        gate = held.enter_context(locked(self._cluster, self._bounds.start_s))
        if gate is None:
            raise PostgresError(f"a PostgreSQL whose parent is gone still runs on {self._cluster}")
        _remove_stale_lock_files(self._cluster, account)
        self._host = held.enter_context(socket_directory(self._cluster))
        settings = [f"--{name}={value}" for name, value in self._settings.items()]
        command = [str(binaries.postgres), "-D", f"/proc/self/fd/{gate}", *settings]
        self._child = spawn(command, account, log, [gate])
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
        # Root may run the server of another user, who must be able to read and rotate the log.
        owner = self._home.stat()
        if owner.st_uid != os.geteuid():
            os.fchown(log, owner.st_uid, owner.st_gid)
        return log

    def _make_cluster(self, binaries: Binaries, account: UnixAccount | None, log: int) -> None:
        """Under another name first: a cluster that has its name is whole and on disk."""
        for leftover in self._home.glob("initdb-*"):
            with locked(leftover, self._bounds.start_s):
                shutil.rmtree(leftover)
        fresh = Path(tempfile.mkdtemp(prefix="initdb-", dir=self._home))
        if account is not None:
            os.chown(fresh, account.uid, account.gid)
        with locked(fresh) as gate:
            assert gate is not None, "nobody else knows the new directory"
            command = _initdb_command(binaries, gate)
            code = _run(spawn(command, account, log, [gate]), self._bounds.start_s)
        if code != 0:
            raise PostgresError(self._with_log(f"initdb failed (exit {code})"))
        fresh.rename(self._cluster)
        sync_directory(self._home)

    def _wait_until_ready(self, child: subprocess.Popen[bytes]) -> None:
        """A server that lives is starting or recovering, and only one that ended has failed."""
        deadline = time.monotonic() + self._bounds.start_s
        while not _ready(self._cluster, child.pid):
            if time.monotonic() >= deadline:
                late = f"PostgreSQL is not ready after {self._bounds.start_s:g} s"
                raise PostgresError(self._with_log(late))
            try:
                code = child.wait(timeout=0.01)
            except subprocess.TimeoutExpired:
                continue
            raise PostgresError(self._with_log(f"PostgreSQL did not start (exit {code})"))

    def _with_log(self, what: str) -> str:
        lines = self.log_path.read_text("utf-8", "replace").splitlines()
        return "\n  ".join([f"{what}; the end of {self.log_path}:", *lines[-8:]])

    def _end(self) -> None:
        child, self._child = self._child, None
        assert child is not None, "there is a child to end"
        # Fast shutdown, then immediate shutdown, which recovers at the next start.
        for ending, wait_s in ((signal.SIGINT, self._bounds.stop_s), (signal.SIGQUIT, QUIT_S)):
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
    """The server that `DATABASE_URL` names, or else an embedded one below `directory`."""
    if given := environ.get("DATABASE_URL"):
        yield given
        return
    with Server(directory, settings=settings) as server:
        yield server.url()


def _initdb_command(binaries: Binaries, gate: int) -> list[str]:
    # Text sorts by code point everywhere, so an upgrade of the system's C library cannot corrupt
    # an index. From version 17 on PostgreSQL brings the rules for letters itself.
    builtin = ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    return [
        str(binaries.initdb),
        f"--pgdata=/proc/self/fd/{gate}",
        "--username=postgres",
        "--auth-local=trust",
        "--auth-host=reject",
        "--encoding=UTF8",
        "--locale=C",
        "--data-checksums",
        *(builtin if binaries.version[0] >= 17 else []),
    ]


def _run(child: subprocess.Popen[bytes], bound_s: float) -> int:
    try:
        return child.wait(bound_s)
    except subprocess.TimeoutExpired as error:
        raise PostgresError(f"initdb is not done after {bound_s:g} s") from error
    finally:
        child.kill()
        child.wait()


def _major(cluster: Path) -> int | None:
    try:
        return int((cluster / "PG_VERSION").read_text())
    except FileNotFoundError:
        return None


def _ready(cluster: Path, pid: int) -> bool:
    """The server's own word, which it writes as the eighth line of its lock file."""
    lines = _lock_file(cluster)
    return len(lines) >= 8 and int(lines[0]) == pid and lines[7].strip() == b"ready"


def _lock_file(cluster: Path) -> list[bytes]:
    try:
        return (cluster / "postmaster.pid").read_bytes().splitlines()
    except FileNotFoundError:
        return []


def _remove_stale_lock_files(cluster: Path, account: UnixAccount | None) -> None:
    """After a kill -9 the lock files stay, and their number may by now be another program's.

    PostgreSQL then refuses to start, and in a container, where numbers are few, it does so often.
    A server works in its cluster's directory, so a program that works elsewhere is none.
    """
    lines = _lock_file(cluster)
    if not lines or not lines[0].strip():
        return
    pid = abs(int(lines[0]))
    found = working_directory(pid, account)
    if found is None:
        # Dead, or another user's, and so not the server: PostgreSQL sees both for itself.
        return
    if found == (cluster.stat().st_dev, cluster.stat().st_ino):
        raise PostgresError(f"PostgreSQL (pid {pid}) already runs on {cluster}: stop it first")
    for name in ("postmaster.pid", f"{SOCKET}.lock"):
        (cluster / name).unlink(missing_ok=True)
