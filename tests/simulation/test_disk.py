"""The simulated disk loses what was not synced, and fails as planned."""

import asyncio
import errno
import random
from collections.abc import Awaitable, Callable

import pytest

from tidegate.simulation.disk import DiskContent, DiskEnvironment, SimDisk, SimInode
from tidegate.simulation.faults import Fault, FaultPlan
from tidegate.simulation.loop import SimLoop, simulate


class DiskBench:
    def __init__(self, plan: FaultPlan | None = None) -> None:
        self.storage, self.synced = DiskContent(), list[bytes]()
        self.crashes: list[Fault] = []
        plan = plan or FaultPlan()
        environment = DiskEnvironment(plan.next_fault, random.Random(1), self.note, self.crash)
        self.disk = SimDisk(self.storage, environment)

    def note(self, inode: SimInode) -> None:
        self.synced.append(bytes(inode.content[: inode.synced]))

    def crash(self, fault: Fault) -> None:
        self.crashes.append(fault)
        self.disk.closed = True

    def content(self, name: str) -> bytes | None:
        inode = self.storage.entries.get(name)
        return None if inode is None else bytes(inode.content)


def run_scene(scene: Callable[[], Awaitable[None]]) -> None:
    async def main(_: SimLoop) -> None:
        await scene()

    simulate(1, main).result()


def test_synced_content_survives_and_any_prefix_of_the_rest() -> None:
    lengths: set[int] = set()
    for seed in range(200):
        bench = DiskBench()

        async def scene(bench: DiskBench = bench) -> None:
            file = bench.disk.create("a")
            file.append(b"safe")
            await file.fdatasync()
            await bench.disk.fsync_dir()
            file.append(b"\x01" * 8)

        run_scene(scene)
        bench.storage.lose_power(random.Random(seed))
        found = bench.content("a")
        assert found is not None
        assert found[:4] == b"safe"
        assert set(found[4:]) <= {0, 1}
        lengths.add(len(found))
    assert lengths == set(range(4, 13))


def test_directory_entries_that_were_not_synced_may_survive_or_be_lost() -> None:
    seen: set[frozenset[str]] = set()
    for seed in range(100):
        bench = DiskBench()

        async def scene(bench: DiskBench = bench) -> None:
            bench.disk.create("a")
            await bench.disk.fsync_dir()
            bench.disk.rename("a", "b")
            bench.disk.create("c")

        run_scene(scene)
        assert bench.disk.names() == ["b", "c"]
        bench.storage.lose_power(random.Random(seed))
        seen.add(frozenset(bench.storage.entries))
    assert {frozenset("a"), frozenset("b"), frozenset("bc")} <= seen
    assert all(names & {"a", "b"} for names in seen), "a rename lost the file itself"


def test_a_sync_after_a_failed_sync_makes_nothing_durable() -> None:
    bench = DiskBench(FaultPlan({0: Fault.EIO}, points=("fdatasync",)))

    async def scene() -> None:
        file = bench.disk.create("a")
        file.append(b"gone")
        with pytest.raises(OSError, match="simulated") as failed:
            await file.fdatasync()
        assert failed.value.errno == errno.EIO
        await file.fdatasync()

    run_scene(scene)
    assert bench.content("a") == b"gone", "reads still return it, from memory"
    assert bench.synced == []
    assert bench.storage.entries["a"].synced == 0


def test_a_full_disk_writes_a_part() -> None:
    bench = DiskBench(FaultPlan({0: Fault.ENOSPC}, points=("append",)))
    file = bench.disk.create("a")
    with pytest.raises(OSError, match="simulated") as full:
        file.append(b"12345678")
    assert full.value.errno == errno.ENOSPC
    found = bench.content("a")
    assert found is not None
    assert b"12345678".startswith(found)
    assert len(found) < 8


def test_a_process_that_died_in_a_call_changes_nothing_more_and_waits_for_ever() -> None:
    bench = DiskBench(FaultPlan({0: Fault.CORE_KILLED}, points=("rename",)))

    async def scene() -> None:
        bench.disk.create("a")
        bench.disk.rename("a", "b")
        names = bench.disk.names()
        bench.disk.create("c").append(b"x")
        bench.disk.unlink(names[0])
        assert bench.disk.names() == names
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1000):
                await bench.disk.fsync_dir()

    run_scene(scene)
    assert bench.crashes == [Fault.CORE_KILLED]


def test_a_stall_is_longer_than_the_timeout() -> None:
    bench = DiskBench(FaultPlan({0: Fault.STALLED}, points=("fdatasync",)))

    async def scene() -> None:
        file = bench.disk.create("a")
        file.append(b"slow")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await file.fdatasync()

    run_scene(scene)
    assert bench.synced == []
