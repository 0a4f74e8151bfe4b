"""What comes back after a crash at any call to the disk: all that was answered."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence

import pytest

from tests.trading_core.disks import Image, PowerLoss, SimDisk, SimFile
from tests.trading_core.scenes import (
    FROZEN,
    RETIRED,
    SMALL,
    UUID_A,
    Given,
    ask,
    batches,
    credit,
    digest,
    given,
    hear,
    opened,
    running,
)
from tidegate.core.wire import (
    KEY,
    PROTOCOL,
    CoreOperation,
    CoreOutcome,
    FrameKind,
    Hello,
    HistoryMark,
)
from tidegate.trading_core import wal
from tidegate.trading_core.core import Core, CoreStopped


class Told:
    """What the outside has been told: it must be true for ever."""

    def __init__(self) -> None:
        self.answers: list[tuple[CoreOperation, Given]] = []
        self.mark: HistoryMark | None = None
        self.digests: dict[int, str] = {}

    async def batch(self, core: Core, operations: Sequence[CoreOperation]) -> None:
        answers = given(await ask(core, *operations), len(operations))
        self.answers += zip(operations, answers, strict=True)
        self.note(core)

    def note(self, core: Core) -> None:
        self.mark = core.mark
        self.digests[core.place.position] = digest(core.book)


async def live(disk: SimDisk, told: Told) -> None:
    """A life with everything in it: batches, administration, snapshots, two restarts."""
    history = batches(9)
    for life in range(3):
        core = await opened(disk, UUID_A, SMALL)
        told.note(core)
        commits = asyncio.ensure_future(core.run())
        try:
            for step in range(3):
                await told.batch(core, history[3 * life + step])
                if step == life:
                    await core.submit(*(RETIRED if life == 1 else FROZEN))
                    told.note(core)
                await core.submit(FrameKind.SNAPSHOT, b"")
                told.note(core)
            core.stop()
            await commits
        except CoreStopped:
            with pytest.raises(PowerLoss):
                await commits
            raise


async def check(image: Image, told: Told, truth: dict[int, str]) -> None:
    disk = SimDisk(image)
    async with running(disk) as core:
        # A state that was, and that holds everything that was answered.
        assert digest(core.book) == truth[core.place.position]
        assert core.refuses(Hello(PROTOCOL, "s", "p", told.mark)) is None
        # Looked up and not asked again: what was lost would only be done again.
        for operation, answer in told.answers:
            key = KEY.pack(operation.transfer_id, operation.version)
            if int.from_bytes(key) < core.book.floor:
                assert core.book.answer(key) == (CoreOutcome.RETIRED, 0)
            elif answer.outcome < CoreOutcome.BUSY:
                assert core.book.answer(key) == answer
            else:
                assert core.book.answer(key) == (CoreOutcome.NOTHING, 0)
        # And it can go on from there, and start again.
        await hear(core, credit(10**6, 1))
        state, place = digest(core.book), core.place
    async with running(SimDisk(disk.after_power_loss(None))) as core:
        assert (digest(core.book), core.place) == (state, place)


def test_a_crash_at_any_call_to_the_disk_loses_nothing_that_was_answered() -> None:
    whole = Told()
    reference = SimDisk()
    asyncio.run(live(reference, whole))
    # The state in between two answers is a truth, too, which nobody was told.
    truth = whole.digests
    assert reference.calls > 100
    for dies_at in range(1, reference.calls + 1):
        disk, told = SimDisk(dies_at=dies_at), Told()
        with pytest.raises((PowerLoss, CoreStopped)):
            asyncio.run(live(disk, told))
        images = [disk.after_power_loss(None), disk.after_power_loss(None, everything=True)]
        images += [disk.after_power_loss(random.Random(seed)) for seed in range(8)]
        for image in images:
            asyncio.run(check(image, told, truth))


class Witness(SimDisk):
    """Remembers which calls a life makes, and so which calls it is crashed at."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def create(self, name: str) -> SimFile:
        self.seen[f"create {_kind(name)}"] += 1
        return super().create(name)

    def rename(self, name: str, new_name: str) -> None:
        self.seen[f"rename {_kind(name)}"] += 1
        super().rename(name, new_name)

    def unlink(self, name: str) -> None:
        self.seen[f"unlink {_kind(name)}"] += 1
        super().unlink(name)

    async def fsync_dir(self) -> None:
        self.seen["fsync_dir"] += 1
        await super().fsync_dir()


def _kind(name: str) -> str:
    return name.removeprefix(wal.TEMPORARY).split("-")[0]


def test_the_life_that_is_crashed_everywhere_rotates_its_log_and_drops_old_segments() -> None:
    disk = Witness()
    asyncio.run(live(disk, Told()))
    for call in ("create", "rename", "unlink"):
        assert disk.seen[f"{call} log"] >= 5, disk.seen
        assert disk.seen[f"{call} snapshot"] >= 5, disk.seen
    # Three starts, and nine snapshots with a new segment each, every name made durable.
    assert disk.seen["fsync_dir"] >= 21, disk.seen


async def start(disk: SimDisk) -> None:
    await opened(disk, UUID_A, SMALL)


def test_a_crash_during_the_restart_after_a_crash_loses_nothing_either() -> None:
    whole, reference = Told(), SimDisk()
    asyncio.run(live(reference, whole))
    for dies_at in range(2, reference.calls, 5):
        disk, told = SimDisk(dies_at=dies_at), Told()
        with pytest.raises((PowerLoss, CoreStopped)):
            asyncio.run(live(disk, told))
        dice = random.Random(dies_at)
        image, again = disk.after_power_loss(dice), 1
        while True:
            restart = SimDisk(image, dies_at=again)
            try:
                asyncio.run(start(restart))
                break
            except PowerLoss:
                asyncio.run(check(restart.after_power_loss(dice), told, whole.digests))
            again += 1
        assert again > 3


def test_the_same_life_without_a_crash_is_found_again() -> None:
    disk, told = SimDisk(), Told()
    asyncio.run(live(disk, told))
    asyncio.run(check(disk.after_power_loss(None), told, told.digests))
