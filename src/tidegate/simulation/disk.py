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
    """A file's content, of which only a prefix has reached the platter."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.content = bytearray()
        self.synced = 0
        self.audited = 0  # How far the auditor has read.
        self.spoilt = (
            False  # A sync has failed: the kernel calls the pages clean, and they are not.
        )


class DirectoryChange(NamedTuple):
    """What a create, rename or unlink did to the directory."""

    removed: str | None
    added: tuple[str, SimInode] | None


class DiskContent:
    """The hardware: one directory, which outlives every process that uses it."""

    def __init__(self) -> None:
        self.entries: dict[str, SimInode] = {}
        self.durable: dict[str, SimInode] = {}
        self.unsynced: list[DirectoryChange] = []

    def change(self, change: DirectoryChange) -> None:
        _carry_out(self.entries, change)
        self.unsynced.append(change)

    def sync_directory(self) -> None:
        self.durable = dict(self.entries)
        self.unsynced.clear()

    def lose_power(self, dice: random.Random) -> None:
        """Of unsynced changes of the directory any may survive; of an unsynced tail any prefix,
        and what did may be torn."""
        changes = self.unsynced
        if dice.random() < 0.5:  # A disk without a journal may keep any of them.
            changes = [change for change in changes if dice.random() < 0.5]
        else:
            changes = changes[: dice.randint(0, len(changes))]
        for change in changes:
            _carry_out(self.durable, change)
        self.unsynced.clear()
        for name, inode in self.durable.items():
            inode.name = name
            _tear(inode, dice)
        self.entries = dict(self.durable)


def _carry_out(entries: dict[str, SimInode], change: DirectoryChange) -> None:
    if change.removed is not None:
        entries.pop(change.removed, None)
    if change.added is not None:
        name, inode = change.added
        entries[name] = inode
        inode.name = name


def _tear(inode: SimInode, dice: random.Random) -> None:
    tail = len(inode.content) - inode.synced
    if tail:
        kept = dice.randint(0, tail)
        del inode.content[inode.synced + kept :]
        if kept and dice.random() < 0.5:  # A torn sector: the rest of it reads as zeros.
            torn = dice.randrange(kept)
            inode.content[inode.synced + torn :] = bytes(kept - torn)
    inode.synced, inode.spoilt = len(inode.content), False


class DiskSurroundings(NamedTuple):
    """What a disk needs of the world around it."""

    fate: Callable[[str], Fault | None]
    dice: random.Random
    synced: Callable[[SimInode], None]  # The auditor is told what has become durable.
    crash: Callable[[Fault], None]  # Ends the process that called.


class SimDisk:
    """One process's door to the platter. Once it is shut, calls do nothing, and never return."""

    def __init__(self, platter: DiskContent, hands: DiskSurroundings) -> None:
        self.platter = platter
        self.fate, self.dice, self.synced, self.crash = hands
        self.shut = False

    def strike(self, point: str, effect: Callable[[], None]) -> None:
        """One system call, and its fate."""
        if self.shut:
            return
        fault = self.fate(point)
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
        return sorted(self.platter.entries)

    def read(self, name: str, offset: int = 0, limit: int = -1) -> bytes:
        if name not in self.platter.entries:
            raise FileNotFoundError(name)
        content = bytes(self.platter.entries[name].content)
        return content[offset:] if limit < 0 else content[offset : offset + limit]

    def create(self, name: str) -> "SimFile":
        assert self.shut or name not in self.platter.entries, f"{name} exists"
        inode = SimInode(name)
        self.strike("create", lambda: self.platter.change(DirectoryChange(None, (name, inode))))
        return SimFile(self, inode)

    def rename(self, name: str, new_name: str) -> None:
        if not self.shut:
            change = DirectoryChange(name, (new_name, self.platter.entries[name]))
            self.strike("rename", lambda: self.platter.change(change))

    def unlink(self, name: str) -> None:
        if not self.shut:
            assert name in self.platter.entries, f"{name} does not exist"
            self.strike("unlink", lambda: self.platter.change(DirectoryChange(name, None)))

    async def fsync_dir(self) -> None:
        await self.work(self.dice.random() * SYNC_S)
        self.strike("fsync_dir", self.platter.sync_directory)
        if self.shut:
            await asyncio.get_running_loop().create_future()

    async def work(self, seconds: float) -> None:
        """While the disk works. A process that has died meanwhile does not come back here."""
        if self.shut:
            await asyncio.get_running_loop().create_future()
        await sleep(seconds)


class SimFile:
    def __init__(self, disk: SimDisk, inode: SimInode) -> None:
        self._disk, self._inode = disk, inode

    def append(self, chunk: bytes | memoryview) -> None:
        disk, content = self._disk, self._inode.content
        if disk.shut:
            return
        fault = disk.fate("append")
        if fault is None:
            content += chunk
            return
        # A full disk takes some of it, and so does one whose process dies in this call.
        content += chunk[: disk.dice.randint(0, len(chunk) - 1)]
        if fault in ERRORS:
            raise OSError(ERRORS[fault], "simulated")
        disk.crash(fault)

    async def extend(self, body: memoryview) -> None:
        await self._disk.work(self._disk.dice.random() * SYNC_S)
        self.append(body)

    async def fdatasync(self) -> None:
        disk, inode = self._disk, self._inode
        fault = None if disk.shut else disk.fate("fdatasync")
        stall = disk.dice.uniform(*STALL_S) if fault is Fault.STALLED else 0.0
        upto = len(inode.content)
        await disk.work(stall + disk.dice.random() * SYNC_S)
        if fault is Fault.EIO:
            inode.spoilt = True
            raise OSError(errno.EIO, "simulated")
        if fault in CRASH:
            disk.crash(fault)
            await asyncio.get_running_loop().create_future()
        if not inode.spoilt:
            inode.synced = upto
            disk.synced(inode)

    def close(self) -> None: ...
