"""A small disk for the core, which can be filled: of its own where that is allowed."""

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


class Room(Protocol):
    """A place for the core's files that can have no room left."""

    kind: str

    def fill(self, pid: int) -> None: ...
    def free(self) -> None: ...


class SmallDisk:
    """A tmpfs of a few megabytes: a file beside the core's takes all that is left."""

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
    """Where nothing may be mounted: the core's files may not grow, until it starts again."""

    kind = "file size limit"

    def fill(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, 1))

    def free(self) -> None:
        pass  # The limit went with the process.


@contextmanager
def small_room(directory: Path) -> Iterator[Room]:
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
