"""Start a program of PostgreSQL as a child that is not root and dies with its parent."""

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

# Loaded here: between fork and exec the child must not load or import anything.
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class UnixAccount:
    """The user that PostgreSQL runs as if we are root: it refuses to run as root."""

    uid: int
    gid: int


def choose_account(cluster: Path) -> UnixAccount | None:
    """Return the user for PostgreSQL, or None if we are not root. Never creates a user."""
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
    """Return a `preexec_fn`: the child gets the signal `ending` when our thread ends."""
    parent = os.getpid()

    def die_with_parent() -> None:
        # This runs after the change of user, which would clear the setting. If the parent died
        # before this call, no signal is sent: so check that the parent is still the same.
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
    """Start `command` in `/` with the `inherited` descriptors open. It ends with our process."""
    if threading.current_thread() is not threading.main_thread():
        # The kernel sends the death signal when the thread that forked ends, not the process: a
        # server started in a worker thread would stop when that thread ends.
        raise PostgresError("PostgreSQL must be started from the main thread")
    return subprocess.Popen(  # noqa: S603  The paths were chosen on purpose.
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
        # Ctrl-C reaches every process of the terminal's session. The server gets its own session,
        # because it must run until its parent has shut down.
        start_new_session=True,
        preexec_fn=dying_with_us(signal.SIGINT),  # noqa: PLW1509  It calls only the kernel.
    )


def working_directory(pid: int, account: UnixAccount | None) -> tuple[int, int] | None:
    """Return device and inode of a process's working directory; None without such a process.

    A child reads them as `account`: in a container, root may not inspect other users' processes.
    """
    command = ["stat", "-L", "-c", "%d %i", f"/proc/{pid}/cwd"]
    child = spawn(command, account, subprocess.PIPE)
    output, _ = child.communicate()
    if child.returncode != 0:
        return None
    device, inode = output.split()
    return int(device), int(inode)
