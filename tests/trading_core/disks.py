"""Disks that forget, fail and count: what a core must survive."""

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

from tidegate.trading_core.disk import Disk, File, RealDisk


class PowerLoss(Exception):
    """The machine is gone: this call, and every call after it, never happened."""


class Inode:
    """A file's content, of which only a prefix has reached the disk."""

    def __init__(self, content: bytes = b"") -> None:
        self.content = bytearray(content)
        self.synced = len(content)


class Change(NamedTuple):
    """What a create, rename or unlink did to the directory."""

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
    """A disk in memory that loses power at a given call, and with it what was not synced."""

    def __init__(self, image: Image | None = None, dies_at: int | None = None) -> None:
        self.durable = {name: Inode(content) for name, content in (image or {}).items()}
        self.entries = dict(self.durable)
        self.unsynced: list[Change] = []
        self.calls = 0
        self.dies_at = dies_at

    def step(self, effect: Callable[[], object]) -> None:
        self.calls += 1
        if self.dies_at is not None and self.calls >= self.dies_at:
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
        _carry_out(self.entries, change)
        self.unsynced.append(change)

    def _sync_directory(self) -> None:
        self.durable = dict(self.entries)
        self.unsynced.clear()

    def after_power_loss(self, dice: random.Random | None, everything: bool = False) -> Image:
        """What the disk holds when power is back: all, only what was synced, or in between.

        Of unsynced changes of the directory any may have reached the disk; of an unsynced tail
        any prefix, and what did may be rubbish.
        """
        found = dict(self.durable)
        changes = self.unsynced if everything or dice else []
        if dice:
            # A journal keeps a prefix; a disk without one may keep any of them.
            some = [change for change in changes if dice.random() < 0.5]
            changes = some if dice.random() < 0.5 else changes[: dice.randint(0, len(changes))]
        for change in changes:
            _carry_out(found, change)
        return {name: _surviving(inode, dice, everything) for name, inode in found.items()}


def _carry_out(entries: dict[str, Inode], change: Change) -> None:
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


class Watched:
    """A real disk of which the calls are counted, and one may fail."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.counts: dict[str, int] = {}
        self.fails: tuple[str, int] | None = None  # Which call, and with which errno.
        self.spared = 0  # Calls of that kind that still succeed.

    def count(self, call: str) -> None:
        self.counts[call] = self.counts.get(call, 0) + 1
        if self.fails is not None and self.fails[0] == call:
            self.spared -= 1
            if self.spared >= 0:
                return
            raise OSError(self.fails[1], "planted")

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
        return WatchedFile(self, self._disk.create(name))

    def rename(self, name: str, new_name: str) -> None:
        self.count("rename")
        self._disk.rename(name, new_name)

    def unlink(self, name: str) -> None:
        self.count("unlink")
        self._disk.unlink(name)

    async def fsync_dir(self) -> None:
        self.count("fsync_dir")
        await self._disk.fsync_dir()


class WatchedFile:
    def __init__(self, disk: Watched, file: File) -> None:
        self._disk, self._file = disk, file

    def append(self, chunk: bytes | memoryview) -> None:
        try:
            self._disk.count("append")
        except OSError:
            self._file.append(chunk[: len(chunk) // 2])  # A full disk takes some of it.
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


class SlowDisk(Watched):
    """A disk that syncs only when it is let."""

    def __init__(self, directory: Path) -> None:
        super().__init__(RealDisk(directory))
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = 0

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Sync nothing meanwhile; whatever happens, go on afterwards."""
        self.gate.clear()
        try:
            yield
        finally:
            self.gate.set()

    def create(self, name: str) -> File:
        return SlowFile(self, super().create(name))


class SlowFile:
    def __init__(self, disk: SlowDisk, file: File) -> None:
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
