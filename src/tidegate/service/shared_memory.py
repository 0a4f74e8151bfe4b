"""Memory that the API processes of one port share: a memfd, whose parts are locked separately."""

import fcntl
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

SIZE = 4 * 2**20
TRIES = 1_000  # About a millisecond; a lock is normally held for microseconds.
PROGRESS = struct.Struct("=qq")  # 1 once an audit has started, and how many transfers it has read.
PROGRESS_AT = 0
RATES_AT = 4096


def create_memory() -> int:
    """Create the file and return its descriptor. Processes that inherit it share the memory."""
    file = os.memfd_create("tidegate-shared")
    os.ftruncate(file, SIZE)
    return file


class SharedMemory:
    """The mapped file. If a process is killed, the kernel releases its locks."""

    def __init__(self, file: int) -> None:
        self._file = file
        self.bytes = mmap.mmap(file, SIZE)

    @contextmanager
    def locked(self, start: int, length: int) -> Iterator[bool]:
        """Lock a part and yield True, or False if a stopped process still holds the lock."""
        held = any(self._lock(start, length) for _ in range(TRIES))
        try:
            yield held
        finally:
            if held:
                fcntl.lockf(self._file, fcntl.LOCK_UN, length, start)

    def _lock(self, start: int, length: int) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, length, start)
        except (BlockingIOError, PermissionError):
            return False
        return True


class SharedAuditProgress:
    """How much the latest requested audit has read, in whichever process it runs."""

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory

    def tell(self, read: int) -> None:
        # Without the lock, skip this update: the next one follows soon.
        with self._memory.locked(PROGRESS_AT, PROGRESS.size) as held:
            if held:
                PROGRESS.pack_into(self._memory.bytes, PROGRESS_AT, 1, read)

    def heard(self) -> int | None:
        with self._memory.locked(PROGRESS_AT, PROGRESS.size):
            started, read = PROGRESS.unpack_from(self._memory.bytes, PROGRESS_AT)
        return int(read) if started else None
