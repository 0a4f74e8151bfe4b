"""Disks that lose unsynced writes, fail, count calls or pause: a core must survive them."""

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

from tidegate.trading_core.disk import Disk, File, RealDisk


class PowerLoss(Exception):
    """The power is off: this call and every later call have no effect."""


class Inode:
    """The content of a file. Only a prefix of it is durable."""

    def __init__(self, content: bytes = b"") -> None:
        self.content = bytearray(content)
        self.synced = len(content)


class Change(NamedTuple):
    """The effect of a create, rename or unlink on the directory."""

    removed: tuple[str, ...]
    added: tuple[tuple[str, Inode], ...]


Image: TypeAlias = dict[str, bytes]


class SimFile:
    def __init__(self, disk: "SimDisk", inode: Inode) -> None:
        self._disk, self._inode = disk, inode

    def append(self, chunk: bytes | memoryview) -> None:
        self._disk.step(lambda: self._inode.content.extend(chunk))

    async def extend(self, body: memoryview) -> None:
        self.append(body)

    async def fdatasync(self) -> None:
        self._disk.step(lambda: setattr(self._inode, "synced", len(self._inode.content)))

    def close(self) -> None:
        pass


class SimDisk:
    """A disk in memory. At a given call it loses power and all that was not synced."""

    def __init__(self, image: Image | None = None, fails_at: int | None = None) -> None:
        self.durable = {name: Inode(content) for name, content in (image or {}).items()}
        self.entries = dict(self.durable)
        self.unsynced: list[Change] = []
        self.calls = 0
        self.fails_at = fails_at

    def step(self, effect: Callable[[], object]) -> None:
        self.calls += 1
        if self.fails_at is not None and self.calls >= self.fails_at:
            raise PowerLoss
        effect()

    def lock(self) -> None: ...

    def unlock(self) -> None: ...

    def names(self) -> list[str]:
        return sorted(self.entries)

    def read(self, name: str, offset: int = 0, limit: int = -1) -> bytes:
        if name not in self.entries:
            raise FileNotFoundError(name)
        content = bytes(self.entries[name].content)
        return content[offset:] if limit < 0 else content[offset : offset + limit]

    def create(self, name: str) -> SimFile:
        assert name not in self.entries
        inode = Inode()
        self.step(lambda: self._change(Change((), ((name, inode),))))
        return SimFile(self, inode)

    def rename(self, name: str, new_name: str) -> None:
        inode = self.entries[name]
        self.step(lambda: self._change(Change((name,), ((new_name, inode),))))

    def unlink(self, name: str) -> None:
        assert name in self.entries
        self.step(lambda: self._change(Change((name,), ())))

    async def fsync_dir(self) -> None:
        self.step(self._sync_directory)

    def _change(self, change: Change) -> None:
        _apply(self.entries, change)
        self.unsynced.append(change)

    def _sync_directory(self) -> None:
        self.durable = dict(self.entries)
        self.unsynced.clear()

    def after_power_loss(self, dice: random.Random | None, everything: bool = False) -> Image:
        """The content of the disk after a restart: everything, only what was synced, or in between.

        Any of the unsynced changes of the directory may have reached the disk. Of an unsynced tail
        of a file, any prefix may have reached it, and its bytes may be garbage.
        """
        entries = dict(self.durable)
        changes = self.unsynced if everything or dice else []
        if dice:
            # A disk with a journal keeps a prefix of the changes; one without may keep any of them.
            kept = [change for change in changes if dice.random() < 0.5]
            changes = kept if dice.random() < 0.5 else changes[: dice.randint(0, len(changes))]
        for change in changes:
            _apply(entries, change)
        return {name: _surviving(inode, dice, everything) for name, inode in entries.items()}


def _apply(entries: dict[str, Inode], change: Change) -> None:
    for name in change.removed:
        entries.pop(name, None)
    entries.update(change.added)


def _surviving(inode: Inode, dice: random.Random | None, everything: bool) -> bytes:
    if everything:
        return bytes(inode.content)
    tail = inode.content[inode.synced :]
    if dice is None or not tail:
        return bytes(inode.content[: inode.synced])
    tail = tail[: dice.randint(0, len(tail))]
    if tail and dice.random() < 0.5:
        tail[dice.randrange(len(tail)) :] = bytes(len(tail) - dice.randrange(len(tail)))
    return bytes(inode.content[: inode.synced] + tail)


class CountingDisk:
    """A real disk that counts the calls, and can let one kind of call fail."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.counts: dict[str, int] = {}
        self.failure: tuple[str, int] | None = None  # The call that fails, and its errno.
        self.successes_left = 0  # Calls of this kind that succeed before the failure.

    def count(self, call: str) -> None:
        self.counts[call] = self.counts.get(call, 0) + 1
        if self.failure is not None and self.failure[0] == call:
            self.successes_left -= 1
            if self.successes_left >= 0:
                return
            raise OSError(self.failure[1], "planted")

    def lock(self) -> None:
        self._disk.lock()

    def unlock(self) -> None:
        self._disk.unlock()

    def names(self) -> list[str]:
        return self._disk.names()

    def read(self, name: str, offset: int = 0, limit: int = -1) -> bytes:
        return self._disk.read(name, offset, limit)

    def create(self, name: str) -> File:
        self.count("create")
        return CountingFile(self, self._disk.create(name))

    def rename(self, name: str, new_name: str) -> None:
        self.count("rename")
        self._disk.rename(name, new_name)

    def unlink(self, name: str) -> None:
        self.count("unlink")
        self._disk.unlink(name)

    async def fsync_dir(self) -> None:
        self.count("fsync_dir")
        await self._disk.fsync_dir()


class CountingFile:
    def __init__(self, disk: CountingDisk, file: File) -> None:
        self._disk, self._file = disk, file

    def append(self, chunk: bytes | memoryview) -> None:
        try:
            self._disk.count("append")
        except OSError:
            self._file.append(chunk[: len(chunk) // 2])  # A full disk writes a part of it.
            raise
        self._file.append(chunk)

    async def extend(self, body: memoryview) -> None:
        self._disk.count("append")
        await self._file.extend(body)

    async def fdatasync(self) -> None:
        self._disk.count("fdatasync")
        await self._file.fdatasync()

    def close(self) -> None:
        self._file.close()


class PausableDisk(CountingDisk):
    """A disk whose syncs a test can pause."""

    def __init__(self, directory: Path) -> None:
        super().__init__(RealDisk(directory))
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = 0

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Sync nothing inside the block; continue afterwards, even after an exception."""
        self.gate.clear()
        try:
            yield
        finally:
            self.gate.set()

    def create(self, name: str) -> File:
        return PausableFile(self, super().create(name))


class PausableFile:
    def __init__(self, disk: PausableDisk, file: File) -> None:
        self._disk, self._file = disk, file

    def append(self, chunk: bytes | memoryview) -> None:
        self._file.append(chunk)

    async def extend(self, body: memoryview) -> None:
        await self._file.extend(body)

    async def fdatasync(self) -> None:
        self._disk.waiting += 1
        await self._disk.gate.wait()
        await self._file.fdatasync()

    def close(self) -> None:
        self._file.close()
