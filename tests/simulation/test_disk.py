"""The simulated disk forgets what was not synced, and fails when it is told to."""

import asyncio
import errno
import random
from collections.abc import Awaitable, Callable

import pytest

from tidegate.simulation.disk import DiskContent, DiskSurroundings, SimDisk, SimInode
from tidegate.simulation.faults import Fault, FaultPlan
from tidegate.simulation.loop import SimLoop, simulate


class Bench:
    def __init__(self, plan: FaultPlan | None = None) -> None:
        self.platter, self.synced = DiskContent(), list[bytes]()
        self.crashes: list[Fault] = []
        plan = plan or FaultPlan()
        hands = DiskSurroundings(plan.suffers, random.Random(1), self.note, self.crash)
        self.disk = SimDisk(self.platter, hands)

    def note(self, inode: SimInode) -> None:
        self.synced.append(bytes(inode.content[: inode.synced]))

    def crash(self, fault: Fault) -> None:
        self.crashes.append(fault)
        self.disk.shut = True

    def content(self, name: str) -> bytes | None:
        inode = self.platter.entries.get(name)
        return None if inode is None else bytes(inode.content)


def play(scene: Callable[[], Awaitable[None]]) -> None:
    async def main(_: SimLoop) -> None:
        await scene()

    simulate(1, main).result()


def test_what_is_synced_survives_and_of_the_rest_any_prefix() -> None:
    kept: set[int] = set()
    for seed in range(200):
        bench = Bench()

        async def scene(bench: Bench = bench) -> None:
            file = bench.disk.create("a")
            file.append(b"safe")
            await file.fdatasync()
            await bench.disk.fsync_dir()
            file.append(b"\x01" * 8)

        play(scene)
        bench.platter.lose_power(random.Random(seed))
        found = bench.content("a")
        assert found is not None
        assert found[:4] == b"safe"
        assert set(found[4:]) <= {0, 1}
        kept.add(len(found))
    assert kept == set(range(4, 13))


def test_names_that_were_not_synced_may_be_lost_and_may_not() -> None:
    seen: set[frozenset[str]] = set()
    for seed in range(100):
        bench = Bench()

        async def scene(bench: Bench = bench) -> None:
            bench.disk.create("a")
            await bench.disk.fsync_dir()
            bench.disk.rename("a", "b")
            bench.disk.create("c")

        play(scene)
        assert bench.disk.names() == ["b", "c"]
        bench.platter.lose_power(random.Random(seed))
        seen.add(frozenset(bench.platter.entries))
    assert {frozenset("a"), frozenset("b"), frozenset("bc")} <= seen
    assert all(names & {"a", "b"} for names in seen), "a rename lost the file itself"


def test_a_failed_sync_is_never_made_good_by_another() -> None:
    bench = Bench(FaultPlan({0: Fault.EIO}, points=("fdatasync",)))

    async def scene() -> None:
        file = bench.disk.create("a")
        file.append(b"gone")
        with pytest.raises(OSError, match="simulated") as failed:
            await file.fdatasync()
        assert failed.value.errno == errno.EIO
        await file.fdatasync()

    play(scene)
    assert bench.content("a") == b"gone", "it still reads, from memory"
    assert bench.synced == []
    assert bench.platter.entries["a"].synced == 0


def test_a_full_disk_takes_a_part() -> None:
    bench = Bench(FaultPlan({0: Fault.ENOSPC}, points=("append",)))
    file = bench.disk.create("a")
    with pytest.raises(OSError, match="simulated") as full:
        file.append(b"12345678")
    assert full.value.errno == errno.ENOSPC
    found = bench.content("a")
    assert found is not None
    assert b"12345678".startswith(found)
    assert len(found) < 8


def test_who_died_in_a_call_changes_nothing_more_and_waits_for_ever() -> None:
    bench = Bench(FaultPlan({0: Fault.CORE_KILLED}, points=("rename",)))

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

    play(scene)
    assert bench.crashes == [Fault.CORE_KILLED]


def test_a_stall_is_longer_than_anybody_waits() -> None:
    bench = Bench(FaultPlan({0: Fault.STALLED}, points=("fdatasync",)))

    async def scene() -> None:
        file = bench.disk.create("a")
        file.append(b"slow")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await file.fdatasync()

    play(scene)
    assert bench.synced == []
