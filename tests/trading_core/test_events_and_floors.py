"""Events are sent in order, and the memory of operations is retired below the floor."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.trading_core.scenes import (
    ANN,
    BOB,
    TEST_LIMITS,
    UUID_A,
    OperationAnswer,
    ask,
    batches,
    credit,
    digest,
    get_answers,
    read_answers,
    refund,
    running_core,
    tid,
)
from tidegate.core import wire
from tidegate.core.ids import HORIZON_S, SKEW_S, TIME_SHIFT
from tidegate.core.wire import AccountStatus, CoreOutcome, FrameKind
from tidegate.trading_core.core import Core
from tidegate.trading_core.disk import RealDisk
from tidegate.trading_core.events import EventsGone, events


async def _until(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("the condition never became true")


async def _retire(core: Core, floor: int) -> int:
    reply = await core.submit(FrameKind.RETIRE, floor.to_bytes(16))
    return int.from_bytes(reply[wire.STAMP.size :])


def test_memory_is_retired_below_the_floor_of_the_store(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running_core(RealDisk(tmp_path)) as core:
            await get_answers(core, *(credit(n, 1) for n in range(1, 11)))
            assert await _retire(core, 0) == 0
            assert len(core.book.memory) == 10
            assert await _retire(core, 4) == 4
            assert len(core.book.memory) == 7
            answers = await get_answers(
                core, credit(3, 1), credit(4, 1), refund(2, 1, expect_done=False)
            )
            assert [g.outcome for g in answers] == [
                CoreOutcome.RETIRED,
                CoreOutcome.DONE,
                CoreOutcome.RETIRED,
            ]
            found = read_answers(await core.submit(FrameKind.QUERY, tid(3) + bytes(4)), 1)
            assert found == [OperationAnswer(CoreOutcome.RETIRED, 0)]
            assert core.book.balance(ANN) == 10

    asyncio.run(scene())


def test_the_floor_only_rises_and_survives(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running_core(RealDisk(tmp_path)) as core:
            await get_answers(core, credit(3, 1), credit(9, 1))
            assert await _retire(core, 5) == 5
            before = core.log_position
            assert await _retire(core, 2) == 5
            assert core.log_position == before  # Nothing was recorded.
            state = digest(core.book)
        async with running_core(RealDisk(tmp_path)) as core:
            assert digest(core.book) == state
            answers = await get_answers(core, credit(3, 1), credit(9, 1))
            assert [g.outcome for g in answers] == [CoreOutcome.RETIRED, CoreOutcome.DONE]

    asyncio.run(scene())


def test_a_floor_that_is_too_recent_is_refused_but_not_checked_again_on_replay(
    tmp_path: Path,
) -> None:
    """By the core's own clock, because a floor that is too high could never be lowered."""

    async def scene() -> None:
        now_s = 2_000_000_000.0
        latest = int(now_s - HORIZON_S + SKEW_S) * 1000 << TIME_SHIFT
        disk = RealDisk(tmp_path)
        for clock_s in (now_s, 0.0):  # At the second start the clock is far behind.
            core = await Core.open(disk, UUID_A, lambda: clock_s, TEST_LIMITS)  # noqa: B023
            commits = asyncio.ensure_future(core.run())
            if clock_s:
                assert await _retire(core, latest + 1) == 0
                assert await _retire(core, latest) == latest
            assert core.book.floor >> 32 == latest
            core.stop()
            await commits
            disk.unlock()

    asyncio.run(scene())


def test_an_operation_queued_after_the_floor_in_the_same_batch_is_retired(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running_core(RealDisk(tmp_path)) as core:
            before = ask(core, credit(1, 1))
            floor = core.submit(FrameKind.RETIRE, tid(5))
            after = ask(core, credit(2, 1))
            await asyncio.gather(before, floor, after)
            assert len(core.marks.positions) == 2  # One frame.
            assert read_answers(before.result(), 1)[0].outcome == CoreOutcome.DONE
            assert read_answers(after.result(), 1)[0].outcome == CoreOutcome.RETIRED
            assert core.book.memory == {}

    asyncio.run(scene())


async def _collect(core: Core, after: int, upto: int) -> list[wire.CoreEvent]:
    collected: list[wire.CoreEvent] = []
    if upto > after:
        async for rows in events(core, after):
            collected += wire.unpack_events(rows)
            if collected and collected[-1].position >= upto:
                break
    return collected


def test_events_are_all_operations_after_a_position_in_order(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running_core(RealDisk(tmp_path)) as core:
            await core.submit(FrameKind.SET_STATUS, wire.STATUS.pack(BOB, AccountStatus.ACTIVE))
            for number, batch in enumerate(batches(6)):
                await ask(core, *batch)
                if number == 2:
                    await core.submit(FrameKind.SNAPSHOT, b"")  # The log continues in another file.
            all_events = await _collect(core, 0, core.log_position.position)
            assert [e.position for e in all_events] == list(
                range(2, core.log_position.position + 1)
            )
            running_sum: dict[tuple[int, int, int], int] = {}
            for event in all_events:
                account = (event.book, event.asset_id, event.owner)
                running_sum[account] = running_sum.get(account, 0) + event.delta
                assert event.balance == running_sum[account]
            for after in range(core.log_position.position):
                rest = await _collect(core, after, core.log_position.position)
                assert rest == [e for e in all_events if e.position > after]

    asyncio.run(scene())


def test_events_wait_for_more_and_end_with_the_core(tmp_path: Path) -> None:
    async def scene() -> None:
        received: list[wire.CoreEvent] = []

        async def follow(core: Core) -> None:
            async for rows in events(core, 0):
                received.extend(wire.unpack_events(rows))

        async with running_core(RealDisk(tmp_path)) as core:
            following = asyncio.ensure_future(follow(core))
            for number in range(1, 6):
                await get_answers(core, credit(number, number))
                await asyncio.sleep(0)
                await _until(lambda: len(received) == len(core.book.memory))
        await asyncio.wait_for(following, 1)
        assert [e.delta for e in received] == [1, 2, 3, 4, 5]

    asyncio.run(scene())


def test_events_of_frames_longer_than_one_read(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running_core(RealDisk(tmp_path)) as core:
            size = wire.MAX_OPERATIONS
            for start in (1, size + 1):
                await get_answers(core, *(credit(n, 1) for n in range(start, start + size)))
            found = await _collect(core, 5, core.log_position.position)
            assert [e.position for e in found] == list(range(6, 2 * size + 1))
            assert found[-1].balance == 2 * size

    asyncio.run(scene())


def test_a_request_for_events_older_than_the_log_is_refused(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running_core(RealDisk(tmp_path)) as core:
            for batch in batches(4):
                await ask(core, *batch)
                await core.submit(FrameKind.SNAPSHOT, b"")
            with pytest.raises(EventsGone, match="no longer reaches back"):
                await _collect(core, 0, 1)
            with pytest.raises(EventsGone, match="does not exist yet"):
                await _collect(core, core.log_position.position + 1, 2**40)

    asyncio.run(scene())
