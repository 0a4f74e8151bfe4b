"""The one door to the disk, so that a simulated disk can stand behind it.

Names are relative to one data directory. Whatever raises OSError here stops the core: after a
failed fsync the kernel may have dropped the pages and called them clean, so that a second try
would succeed and prove nothing.
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
    """A file that only grows."""

    def append(self, chunk: bytes | memoryview) -> None: ...

    async def extend(self, body: memoryview) -> None:
        """Append what is large. Meanwhile others go on."""

    async def fdatasync(self) -> None:
        """When it returns, everything appended survives a loss of power."""

    def close(self) -> None: ...


class Disk(Protocol):
    """One directory. What is created or renamed survives only once the directory is synced."""

    def lock(self) -> None:
        """Take the directory for the life of this process, or raise Locked."""

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
        rest = memoryview(chunk)
        while rest:
            rest = rest[os.write(self._fd, rest) :]

    async def extend(self, body: memoryview) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._syncer, self.append, body)

    async def fdatasync(self) -> None:
        # In a thread, because a slow disk must not keep us from saying BUSY.
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
        except BlockingIOError as taken:
            self.unlock()
            raise DirectoryLocked(f"{self._directory} is in use by another trading core") from taken

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
