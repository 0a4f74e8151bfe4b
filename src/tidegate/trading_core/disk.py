"""All access of the core to its disk, behind a protocol that a simulated disk also implements.

Names are relative to the data directory. Every OSError stops the core: after a failed fsync the
kernel may have dropped the pages and marked them clean, so a second fsync would succeed although
nothing was written.
"""

import asyncio
import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

LOCK = "lock"


class DirectoryLocked(Exception):
    """Another process holds the data directory."""


class File(Protocol):
    """An append-only file."""

    def append(self, chunk: bytes | memoryview) -> None: ...

    async def extend(self, body: memoryview) -> None:
        """Append a large body without blocking the event loop."""

    async def fdatasync(self) -> None:
        """Sync the file. Once this returns, all that was appended survives a power loss."""

    def close(self) -> None: ...


class Disk(Protocol):
    """A directory. Created and renamed files survive a crash only after `fsync_dir`."""

    def lock(self) -> None:
        """Lock the directory for this process, or raise DirectoryLocked."""

    def unlock(self) -> None: ...

    def names(self) -> list[str]: ...

    def read(self, name: str, offset: int = 0, limit: int = -1) -> bytes: ...

    def create(self, name: str) -> File: ...

    def rename(self, name: str, new_name: str) -> None: ...

    def unlink(self, name: str) -> None: ...

    async def fsync_dir(self) -> None: ...


class RealFile:
    def __init__(self, path: Path, syncer: ThreadPoolExecutor) -> None:
        self._syncer = syncer
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)

    def append(self, chunk: bytes | memoryview) -> None:
        remaining = memoryview(chunk)
        while remaining:
            remaining = remaining[os.write(self._fd, remaining) :]

    async def extend(self, body: memoryview) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._syncer, self.append, body)

    async def fdatasync(self) -> None:
        # In a thread, because the core must be able to reply BUSY while the disk is slow.
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._syncer, os.fdatasync, self._fd)

    def close(self) -> None:
        os.close(self._fd)


class RealDisk:
    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory = directory
        self._syncer = ThreadPoolExecutor(1, "fdatasync")
        self._lock: int | None = None

    def lock(self) -> None:
        self._lock = os.open(self._directory / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as fault:
            self.unlock()
            raise DirectoryLocked(f"{self._directory} is in use by another trading core") from fault

    def unlock(self) -> None:
        assert self._lock is not None
        os.close(self._lock)
        self._lock = None

    def names(self) -> list[str]:
        return sorted(os.listdir(self._directory))

    def read(self, name: str, offset: int = 0, limit: int = -1) -> bytes:
        with (self._directory / name).open("rb") as file:
            file.seek(offset)
            return file.read(limit)

    def create(self, name: str) -> RealFile:
        return RealFile(self._directory / name, self._syncer)

    def rename(self, name: str, new_name: str) -> None:
        (self._directory / name).rename(self._directory / new_name)

    def unlink(self, name: str) -> None:
        (self._directory / name).unlink()

    async def fsync_dir(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._syncer, self._fsync_dir)

    def _fsync_dir(self) -> None:
        fd = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
