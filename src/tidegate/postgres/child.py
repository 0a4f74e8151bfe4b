"""Start a program of PostgreSQL as a child that is not root and that dies with its parent."""

import ctypes
import os
import pwd
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidegate.postgres.binaries import ENVIRONMENT, PostgresError

PR_SET_PDEATHSIG = 1

# Loaded here and not in the child: between fork and exec nothing may load or import.
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class UnixAccount:
    """The user a program runs as when we are root, which PostgreSQL refuses to be."""

    uid: int
    gid: int


def choose_account(cluster: Path) -> UnixAccount | None:
    """None for an ordinary user, who runs everything as himself; no user is ever created."""
    if os.geteuid() != 0:
        return None
    if cluster.exists():
        owner = cluster.stat()
        if owner.st_uid != 0:
            return UnixAccount(owner.st_uid, owner.st_gid)
    for name in ("postgres", "nobody"):
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        return UnixAccount(user.pw_uid, user.pw_gid)
    raise PostgresError(
        "PostgreSQL refuses to run as root and there is no user postgres or nobody:"
        " run as an ordinary user, or set DATABASE_URL"
    )


def dying_with_us(ending: signal.Signals) -> Callable[[], None]:
    """What a child runs before its program, so that it gets `ending` when our thread ends."""
    parent = os.getpid()

    def die_with_parent() -> None:
        # This runs after the change of user, which clears the setting. A parent that died
        # before the call sends nothing any more, hence the look at who the parent is now.
        failed = _LIBC.prctl(PR_SET_PDEATHSIG, ending, 0, 0, 0)
        if failed or os.getppid() != parent:
            os._exit(1)

    return die_with_parent


def spawn(
    command: Sequence[str],
    account: UnixAccount | None,
    output: int = subprocess.DEVNULL,
    inherited: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Run `command` in `/`, with `inherited` open, until it ends or we do."""
    if threading.current_thread() is not threading.main_thread():
        # The kernel ties the death signal to the thread that forked, not to its program: a
        # server started from a worker thread would stop when that thread ends.
        raise PostgresError("PostgreSQL must be started from the main thread")
    return subprocess.Popen(  # noqa: S603  The programs are those found on purpose.
        command,
        cwd="/",
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=tuple(inherited),
        user=account.uid if account else None,
        group=account.gid if account else None,
        extra_groups=[] if account else None,
        umask=0o077,
        # A terminal's Ctrl-C reaches its whole session. The server leaves it, because it has to
        # stay until its parent has put down what it was doing.
        start_new_session=True,
        preexec_fn=dying_with_us(signal.SIGINT),  # noqa: PLW1509  It calls only the kernel.
    )


def working_directory(pid: int, account: UnixAccount | None) -> tuple[int, int] | None:
    """Device and inode of where a program of `account` works; None if there is no such program.

    Asked as that user, since in a container root may not look at the programs of others.
    """
    command = ["stat", "-L", "-c", "%d %i", f"/proc/{pid}/cwd"]
    child = spawn(command, account, subprocess.PIPE)
    answer, _ = child.communicate()
    if child.returncode != 0:
        return None
    device, inode = answer.split()
    return int(device), int(inode)
