"""A disk in memory: what is written is volatile until it is synced, and syncing can fail."""

import asyncio
import errno
import random
from collections.abc import Callable
from typing import NamedTuple

from tidegate.simulation.faults import CRASH, Fault
from tidegate.simulation.loop import sleep

STALL_S = (2.5, 6.0)
SYNC_S = 0.002
ERRORS = {Fault.EIO: errno.EIO, Fault.ENOSPC: errno.ENOSPC}


class SimInode:
    """A file's content. Only a prefix of it is durable."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.content = bytearray()
        self.synced = 0
        self.audited = 0  # How far the auditor has read.
        # After a failed sync the kernel marks the pages as clean although they are not written.
        self.sync_failed = False


class DirectoryChange(NamedTuple):
    """The effect of a create, rename or unlink on the directory."""

    removed: str | None
    added: tuple[str, SimInode] | None


class DiskContent:
    """The storage device: one directory, which survives every process that uses it."""

    def __init__(self) -> None:
        self.entries: dict[str, SimInode] = {}
        self.durable: dict[str, SimInode] = {}
        self.unsynced: list[DirectoryChange] = []

    def change(self, change: DirectoryChange) -> None:
        _apply(self.entries, change)
        self.unsynced.append(change)

    def sync_directory(self) -> None:
        self.durable = dict(self.entries)
        self.unsynced.clear()

    def lose_power(self, dice: random.Random) -> None:
        """Keep some unsynced directory changes, and a prefix of each unsynced tail, maybe torn."""
        changes = self.unsynced
        if dice.random() < 0.5:  # A disk without a journal may keep any of them.
            changes = [change for change in changes if dice.random() < 0.5]
        else:
            changes = changes[: dice.randint(0, len(changes))]
        for change in changes:
            _apply(self.durable, change)
        self.unsynced.clear()
        for name, inode in self.durable.items():
            inode.name = name
            _tear_tail(inode, dice)
        self.entries = dict(self.durable)


def _apply(entries: dict[str, SimInode], change: DirectoryChange) -> None:
    if change.removed is not None:
        entries.pop(change.removed, None)
    if change.added is not None:
        name, inode = change.added
        entries[name] = inode
        inode.name = name


def _tear_tail(inode: SimInode, dice: random.Random) -> None:
    tail = len(inode.content) - inode.synced
    if tail:
        kept = dice.randint(0, tail)
        del inode.content[inode.synced + kept :]
        if kept and dice.random() < 0.5:  # A torn sector: the rest of it reads as zeros.
            torn = dice.randrange(kept)
            inode.content[inode.synced + torn :] = bytes(kept - torn)
    inode.synced, inode.sync_failed = len(inode.content), False


class DiskEnvironment(NamedTuple):
    """The parts of the world that a disk needs."""

    next_fault: Callable[[str], Fault | None]
    dice: random.Random
    synced: Callable[[SimInode], None]  # Notifies the auditor of what is durable now.
    crash: Callable[[Fault], None]  # Kills the calling process.


class SimDisk:
    """One process's access to the storage. After closing, calls do nothing or never return."""

    def __init__(self, storage: DiskContent, environment: DiskEnvironment) -> None:
        self.storage = storage
        self.next_fault, self.dice, self.synced, self.crash = environment
        self.closed = False

    def call(self, point: str, effect: Callable[[], None]) -> None:
        """One system call, with its fault if it has one."""
        if self.closed:
            return
        fault = self.next_fault(point)
        if fault is None:
            effect()
        elif fault in ERRORS:
            raise OSError(ERRORS[fault], "simulated")
        else:
            if self.dice.random() < 0.5:
                effect()
            self.crash(fault)

    def lock(self) -> None: ...

    def unlock(self) -> None: ...

    def names(self) -> list[str]:
        return sorted(self.storage.entries)

    def read(self, name: str, offset: int = 0, limit: int = -1) -> bytes:
        if name not in self.storage.entries:
            raise FileNotFoundError(name)
        content = bytes(self.storage.entries[name].content)
        return content[offset:] if limit < 0 else content[offset : offset + limit]

    def create(self, name: str) -> "SimFile":
        assert self.closed or name not in self.storage.entries, f"{name} exists"
        inode = SimInode(name)
        self.call("create", lambda: self.storage.change(DirectoryChange(None, (name, inode))))
        return SimFile(self, inode)

    def rename(self, name: str, new_name: str) -> None:
        if not self.closed:
            change = DirectoryChange(name, (new_name, self.storage.entries[name]))
            self.call("rename", lambda: self.storage.change(change))

    def unlink(self, name: str) -> None:
        if not self.closed:
            assert name in self.storage.entries, f"{name} does not exist"
            self.call("unlink", lambda: self.storage.change(DirectoryChange(name, None)))

    async def fsync_dir(self) -> None:
        await self.work(self.dice.random() * SYNC_S)
        self.call("fsync_dir", self.storage.sync_directory)
        if self.closed:
            await asyncio.get_running_loop().create_future()

    async def work(self, seconds: float) -> None:
        """Wait for the disk. If the process has died before, this never returns."""
        if self.closed:
            await asyncio.get_running_loop().create_future()
        await sleep(seconds)


class SimFile:
    def __init__(self, disk: SimDisk, inode: SimInode) -> None:
        self._disk, self._inode = disk, inode

    def append(self, chunk: bytes | memoryview) -> None:
        disk, content = self._disk, self._inode.content
        if disk.closed:
            return
        fault = disk.next_fault("append")
        if fault is None:
            content += chunk
            return
        # A part is written if the disk is full, and also if the process dies in this call.
        content += chunk[: disk.dice.randint(0, len(chunk) - 1)]
        if fault in ERRORS:
            raise OSError(ERRORS[fault], "simulated")
        disk.crash(fault)

    async def extend(self, body: memoryview) -> None:
        await self._disk.work(self._disk.dice.random() * SYNC_S)
        self.append(body)

    async def fdatasync(self) -> None:
        disk, inode = self._disk, self._inode
        fault = None if disk.closed else disk.next_fault("fdatasync")
        stall = disk.dice.uniform(*STALL_S) if fault is Fault.STALLED else 0.0
        end = len(inode.content)
        await disk.work(stall + disk.dice.random() * SYNC_S)
        if fault is Fault.EIO:
            inode.sync_failed = True
            raise OSError(errno.EIO, "simulated")
        if fault in CRASH:
            disk.crash(fault)
            await asyncio.get_running_loop().create_future()
        if not inode.sync_failed:
            inode.synced = end
            disk.synced(inode)

    def close(self) -> None: ...
