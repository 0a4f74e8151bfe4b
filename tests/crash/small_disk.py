"""A small disk for the core that can be filled: a tmpfs, or file size limits without mounts."""

import contextlib
import errno
import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

SIZE = 48 * 2**20
CHUNK = 2**20


class CoreDisk(Protocol):
    """The disk of the core's files, which can be made full."""

    kind: str

    def fill(self, pid: int) -> None: ...
    def free(self) -> None: ...


class SmallDisk:
    """A tmpfs of some megabytes. A file beside the core's files fills it."""

    kind = "tmpfs"

    def __init__(self, directory: Path) -> None:
        self._filler = directory / "filler"

    def fill(self, pid: int) -> None:
        file = os.open(self._filler, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        size = CHUNK
        try:
            while size:
                try:
                    os.write(file, bytes(size))
                except OSError as fault:
                    if fault.errno != errno.ENOSPC:
                        raise
                    size //= 2
        finally:
            os.close(file)

    def free(self) -> None:
        self._filler.unlink(missing_ok=True)


class SmallFiles:
    """For systems where mounting is forbidden: the core's files cannot grow until it restarts."""

    kind = "file size limit"

    def fill(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, 1))

    def free(self) -> None:
        pass  # The limit ended with the process.


@contextmanager
def small_disk(directory: Path) -> Iterator[CoreDisk]:
    directory.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=0700", "tidegate-crash"]
    try:
        subprocess.run([*mount, str(directory)], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        yield SmallFiles()
        return
    try:
        yield SmallDisk(directory)
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)
