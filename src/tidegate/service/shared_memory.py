"""What the API processes of one port know together: a file in memory, locked in parts."""

import fcntl
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

SIZE = 4 * 2**20
TRIES = 1_000  # About a millisecond: a lock is held for microseconds.
PROGRESS = struct.Struct("=qq")  # Whether there is any, and how many transfers were read.
PROGRESS_AT = 0
RATES_AT = 4096


def create_memory() -> int:
    """The descriptor of such a file. Processes that inherit it know the same."""
    file = os.memfd_create("tidegate-shared")
    os.ftruncate(file, SIZE)
    return file


class SharedMemory:
    """A process that is killed leaves its locks: the kernel frees them."""

    def __init__(self, file: int) -> None:
        self._file = file
        self.bytes = mmap.mmap(file, SIZE)

    @contextmanager
    def locked(self, start: int, length: int) -> Iterator[bool]:
        """Yield whether this part is ours for now. False: a process has stopped while it had it."""
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
    """How much the audit that somebody asked for last has read, whichever process makes it."""

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory

    def tell(self, read: int) -> None:
        # If the lock cannot be had, the next word comes in a moment.
        with self._memory.locked(PROGRESS_AT, PROGRESS.size) as held:
            if held:
                PROGRESS.pack_into(self._memory.bytes, PROGRESS_AT, 1, read)

    def heard(self) -> int | None:
        with self._memory.locked(PROGRESS_AT, PROGRESS.size):
            told, read = PROGRESS.unpack_from(self._memory.bytes, PROGRESS_AT)
        return int(read) if told else None
