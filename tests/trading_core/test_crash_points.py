"""After a crash at any call to the disk, everything that was answered is recovered."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence

import pytest

from tests.trading_core.disks import Image, PowerLoss, SimDisk, SimFile
from tests.trading_core.scenes import (
    FROZEN,
    RETIRED,
    TEST_LIMITS,
    UUID_A,
    OperationAnswer,
    ask,
    batches,
    credit,
    digest,
    get_answers,
    open_core,
    read_answers,
    running_core,
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


class Answered:
    """What clients have received: answers, a mark, and the states after them. It must stay true."""

    def __init__(self) -> None:
        self.answers: list[tuple[CoreOperation, OperationAnswer]] = []
        self.mark: HistoryMark | None = None
        self.digests: dict[int, str] = {}

    async def batch(self, core: Core, operations: Sequence[CoreOperation]) -> None:
        answers = read_answers(await ask(core, *operations), len(operations))
        self.answers += zip(operations, answers, strict=True)
        self.record_state(core)

    def record_state(self, core: Core) -> None:
        self.mark = core.mark
        self.digests[core.log_position.position] = digest(core.book)


async def play_history(disk: SimDisk, answered: Answered) -> None:
    """A history with batches, administration, snapshots and two restarts."""
    history = batches(9)
    for start_number in range(3):
        core = await open_core(disk, UUID_A, TEST_LIMITS)
        answered.record_state(core)
        commits = asyncio.ensure_future(core.run())
        try:
            for step in range(3):
                await answered.batch(core, history[3 * start_number + step])
                if step == start_number:
                    await core.submit(*(RETIRED if start_number == 1 else FROZEN))
                    answered.record_state(core)
                await core.submit(FrameKind.SNAPSHOT, b"")
                answered.record_state(core)
            core.stop()
            await commits
        except CoreStopped:
            with pytest.raises(PowerLoss):
                await commits
            raise


async def check(image: Image, answered: Answered, states: dict[int, str]) -> None:
    disk = SimDisk(image)
    async with running_core(disk) as core:
        # The state is one of the history, and it contains everything that was answered.
        assert digest(core.book) == states[core.log_position.position]
        assert core.refusal_of(Hello(PROTOCOL, "s", "p", answered.mark)) is None
        # Looked up, not asked again: asking would execute a lost operation a second time.
        for operation, answer in answered.answers:
            key = KEY.pack(operation.transfer_id, operation.version)
            if int.from_bytes(key) < core.book.floor:
                assert core.book.answer(key) == (CoreOutcome.RETIRED, 0)
            elif answer.outcome < CoreOutcome.BUSY:
                assert core.book.answer(key) == answer
            else:
                assert core.book.answer(key) == (CoreOutcome.NOTHING, 0)
        # The core can continue from there, and start again.
        await get_answers(core, credit(10**6, 1))
        state = digest(core.book), core.log_position
    async with running_core(SimDisk(disk.after_power_loss(None))) as core:
        assert (digest(core.book), core.log_position) == state


def test_a_crash_at_any_call_to_the_disk_loses_nothing_that_was_answered() -> None:
    complete = Answered()
    reference = SimDisk()
    asyncio.run(play_history(reference, complete))
    # A crashed run may recover a state that was durable but not answered. This run has recorded it.
    states = complete.digests
    assert reference.calls > 100
    for fails_at in range(1, reference.calls + 1):
        disk, answered = SimDisk(fails_at=fails_at), Answered()
        with pytest.raises((PowerLoss, CoreStopped)):
            asyncio.run(play_history(disk, answered))
        images = [disk.after_power_loss(None), disk.after_power_loss(None, everything=True)]
        images += [disk.after_power_loss(random.Random(seed)) for seed in range(8)]
        for image in images:
            asyncio.run(check(image, answered, states))


class CallRecordingDisk(SimDisk):
    """Counts the calls by name, and so the calls at which the history is crashed."""

    def __init__(self) -> None:
        super().__init__()
        self.calls_by_name: Counter[str] = Counter()

    def create(self, name: str) -> SimFile:
        self.calls_by_name[f"create {_kind(name)}"] += 1
        return super().create(name)

    def rename(self, name: str, new_name: str) -> None:
        self.calls_by_name[f"rename {_kind(name)}"] += 1
        super().rename(name, new_name)

    def unlink(self, name: str) -> None:
        self.calls_by_name[f"unlink {_kind(name)}"] += 1
        super().unlink(name)

    async def fsync_dir(self) -> None:
        self.calls_by_name["fsync_dir"] += 1
        await super().fsync_dir()


def _kind(name: str) -> str:
    return name.removeprefix(wal.TEMPORARY).split("-")[0]


def test_the_history_for_the_crashes_rotates_its_log_and_deletes_old_segments() -> None:
    disk = CallRecordingDisk()
    asyncio.run(play_history(disk, Answered()))
    for call in ("create", "rename", "unlink"):
        assert disk.calls_by_name[f"{call} log"] >= 5, disk.calls_by_name
        assert disk.calls_by_name[f"{call} snapshot"] >= 5, disk.calls_by_name
    # Three starts, and nine snapshots with a new segment each, every name made durable.
    assert disk.calls_by_name["fsync_dir"] >= 21, disk.calls_by_name


async def start(disk: SimDisk) -> None:
    await open_core(disk, UUID_A, TEST_LIMITS)


def test_a_crash_during_the_restart_after_a_crash_loses_nothing_either() -> None:
    complete, reference = Answered(), SimDisk()
    asyncio.run(play_history(reference, complete))
    for fails_at in range(2, reference.calls, 5):
        disk, answered = SimDisk(fails_at=fails_at), Answered()
        with pytest.raises((PowerLoss, CoreStopped)):
            asyncio.run(play_history(disk, answered))
        dice = random.Random(fails_at)
        image, again = disk.after_power_loss(dice), 1
        while True:
            restart = SimDisk(image, fails_at=again)
            try:
                asyncio.run(start(restart))
                break
            except PowerLoss:
                asyncio.run(check(restart.after_power_loss(dice), answered, complete.digests))
            again += 1
        assert again > 3


def test_the_same_history_without_a_crash_is_recovered() -> None:
    disk, answered = SimDisk(), Answered()
    asyncio.run(play_history(disk, answered))
    asyncio.run(check(disk.after_power_loss(None), answered, answered.digests))
