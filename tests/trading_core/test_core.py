"""The core without sockets: group commit, full queue, failing disk, and refused clients."""

import asyncio
import errno
import struct
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from tests.trading_core.disks import CountingDisk, PausableDisk
from tests.trading_core.scenes import (
    ANN,
    BOB,
    TEST_LIMITS,
    UUID_A,
    UUID_B,
    OperationAnswer,
    ask,
    batches,
    credit,
    debit,
    digest,
    get_answers,
    open_core,
    read_answers,
    refund,
    running_core,
    tid,
    until,
)
from tidegate.core import wire
from tidegate.core.wire import (
    PROTOCOL,
    CoreOutcome,
    FrameKind,
    Hello,
    HistoryMark,
    MalformedFrame,
    SessionRefusal,
)
from tidegate.trading_core.core import Core, CoreBusy, CoreLimits, CoreStopped
from tidegate.trading_core.disk import DirectoryLocked, RealDisk


def test_requests_that_arrive_during_a_sync_are_one_batch_with_one_sync(tmp_path: Path) -> None:
    async def scene() -> None:
        disk = CountingDisk(RealDisk(tmp_path))
        async with running_core(disk) as core:
            before = disk.counts["fdatasync"]
            first = ask(core, credit(1, 100))
            await asyncio.sleep(0)  # The first is being synced now.
            others = [ask(core, debit(n, 1)) for n in range(2, 102)]
            await asyncio.gather(first, *others)
            assert disk.counts["fdatasync"] - before == 2
            assert core.log_position.position == 101
            assert len(core.marks.positions) == 3  # Genesis, and one for each frame.

    asyncio.run(scene())


def test_a_batch_is_bounded(tmp_path: Path) -> None:
    async def scene() -> None:
        disk = CountingDisk(RealDisk(tmp_path))
        async with running_core(disk, TEST_LIMITS._replace(batch_operations=10)) as core:
            before = disk.counts["fdatasync"]
            await asyncio.gather(*(ask(core, credit(n, 1), credit(n + 50, 1)) for n in range(50)))
            assert disk.counts["fdatasync"] - before == 10

    asyncio.run(scene())


def test_a_batch_without_new_operations_needs_no_sync(tmp_path: Path) -> None:
    async def scene() -> None:
        disk = CountingDisk(RealDisk(tmp_path))
        async with running_core(disk) as core:
            first = await get_answers(core, credit(1, 100), debit(2, 500))
            before = disk.counts["fdatasync"], core.log_position
            assert await get_answers(core, credit(1, 100), debit(2, 500)) == first
            assert await get_answers(core, refund(7, 1)) == [
                OperationAnswer(CoreOutcome.UNDO_UNFOUNDED, 0)
            ]
            assert (disk.counts["fdatasync"], core.log_position) == before

    asyncio.run(scene())


def test_what_is_not_durable_is_neither_answered_nor_visible(tmp_path: Path) -> None:
    async def scene() -> None:
        disk = PausableDisk(tmp_path)
        async with running_core(disk) as core:
            await get_answers(core, credit(1, 100))
            before, waiting = digest(core.book), disk.waiting
            with disk.paused():
                original = ask(core, debit(2, 30))
                await until(lambda: disk.waiting > waiting)
                duplicate = ask(core, debit(2, 30))
                await asyncio.sleep(0.02)
                assert not original.done()
                assert not duplicate.done()
                assert digest(core.book) == before
                found = await core.submit(FrameKind.QUERY, tid(2) + bytes(4))
                assert read_answers(found, 1) == [OperationAnswer(CoreOutcome.NOTHING, 0)]
            assert read_answers(await original, 1) == read_answers(await duplicate, 1)

    asyncio.run(scene())


def test_a_full_queue_is_busy_and_the_same_key_executes_later(tmp_path: Path) -> None:
    async def scene() -> None:
        disk = PausableDisk(tmp_path)
        async with running_core(disk, TEST_LIMITS._replace(queue_operations=3)) as core:
            waiting = disk.waiting
            with disk.paused():
                under_way = ask(core, credit(1, 1))
                await until(lambda: disk.waiting > waiting)
                queued = ask(core, credit(2, 1), credit(3, 1))
                with pytest.raises(CoreBusy):
                    ask(core, credit(4, 1), credit(5, 1))
                small = ask(core, credit(6, 1))
            await asyncio.gather(under_way, queued, small)
            assert core.book.balance(ANN) == 4
            assert [g.outcome for g in await get_answers(core, credit(4, 1), credit(5, 1))] == [
                1,
                1,
            ]
            assert core.book.balance(ANN) == 6

    asyncio.run(scene())


@pytest.mark.parametrize("limit", ["queue_bytes", "queue_requests"])
def test_the_queue_is_bounded_in_bytes_and_requests(tmp_path: Path, limit: str) -> None:
    async def scene() -> None:
        bound = {"queue_bytes": 2 * wire.OPERATION.size, "queue_requests": 2}[limit]
        async with running_core(
            RealDisk(tmp_path), TEST_LIMITS._replace(**cast(Any, {limit: bound}))
        ) as core:
            first = [ask(core, credit(1, 1)), ask(core, credit(2, 1))]
            with pytest.raises(CoreBusy):
                ask(core, credit(3, 1))
            await asyncio.gather(*first)
            await get_answers(core, credit(3, 1))

    asyncio.run(scene())


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("call", ["append", "fdatasync"])
def test_a_failing_disk_stops_the_core_and_nothing_undurable_is_answered(
    tmp_path: Path, call: str, code: int
) -> None:
    async def scene() -> None:
        disk = CountingDisk(RealDisk(tmp_path))
        core = await open_core(disk, UUID_A, TEST_LIMITS)
        commits = asyncio.ensure_future(core.run())
        answers = await get_answers(core, credit(1, 100))
        mark, state = core.mark, digest(core.book)
        disk.failure = (call, code)
        syncs = disk.counts["fdatasync"]
        failing, queued = ask(core, debit(2, 30)), ask(core, debit(3, 30))
        for reply in (failing, queued):
            with pytest.raises(CoreStopped):
                await reply
        with pytest.raises(OSError, match="planted"):
            await commits
        with pytest.raises(CoreStopped):
            ask(core, debit(2, 30))
        assert digest(core.book) == state
        assert disk.counts["fdatasync"] - syncs <= 1  # Tried once, and never again.
        disk.unlock()
        async with running_core(RealDisk(tmp_path)) as again:
            assert again.refusal_of(Hello(PROTOCOL, "s", "p", mark)) is None
            assert await get_answers(again, credit(1, 100)) == answers
            assert [g.outcome for g in await get_answers(again, debit(2, 30))] == [CoreOutcome.DONE]
            assert again.book.balance(ANN) in (70, 40)  # The third may have been written.

    asyncio.run(scene())


@pytest.mark.parametrize("successes", [0, 1], ids=["of the new segment", "of the snapshot"])
@pytest.mark.parametrize("call", ["create", "append", "fdatasync", "rename", "fsync_dir"])
def test_a_failing_snapshot_stops_the_core_with_the_real_error_and_loses_nothing(
    tmp_path: Path, call: str, successes: int
) -> None:
    async def scene() -> None:
        disk = CountingDisk(RealDisk(tmp_path))
        core = await open_core(disk, UUID_A, TEST_LIMITS)
        commits = asyncio.ensure_future(core.run())
        answers = await get_answers(core, credit(1, 100))
        disk.failure, disk.successes_left = (call, errno.ENOSPC), successes
        with pytest.raises(CoreStopped):
            await core.submit(FrameKind.SNAPSHOT, b"")
        with pytest.raises(OSError, match="planted"):
            await commits
        disk.unlock()
        async with running_core(RealDisk(tmp_path)) as again:
            assert await get_answers(again, credit(1, 100)) == answers
            assert again.book.balance(ANN) == 100

    asyncio.run(scene())


def test_snapshots_are_taken_by_count_and_by_size(tmp_path: Path) -> None:
    async def scene(directory: Path, limits: CoreLimits) -> None:
        async with running_core(RealDisk(directory), limits) as core:
            for batch in batches(12):
                await ask(core, *batch)
            state = digest(core.book)
        async with running_core(RealDisk(directory), limits) as core:
            assert digest(core.book) == state

    by_count, by_size = (
        TEST_LIMITS._replace(snapshot_records=12),
        TEST_LIMITS._replace(snapshot_bytes=900),
    )
    for name, limits, count in (("a", by_count, 2), ("b", by_size, 2), ("c", TEST_LIMITS, 0)):
        asyncio.run(scene(tmp_path / name, limits))
        assert len(list((tmp_path / name).glob("snapshot-*"))) == count


def test_no_snapshot_is_written_if_nothing_is_new(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running_core(RealDisk(tmp_path)) as core:
            await core.submit(FrameKind.SNAPSHOT, b"")
            await get_answers(core, credit(1, 1))
            await core.submit(FrameKind.SNAPSHOT, b"")
            await core.submit(FrameKind.SNAPSHOT, b"")

    asyncio.run(scene())
    assert len(list(tmp_path.glob("snapshot-*"))) == 1


def test_one_directory_serves_one_core(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running_core(RealDisk(tmp_path)):
            with pytest.raises(DirectoryLocked, match="in use by another trading core"):
                await open_core(RealDisk(tmp_path), UUID_B)

    asyncio.run(scene())


def test_a_stopped_core_finishes_what_is_queued_and_takes_no_more(tmp_path: Path) -> None:
    async def scene() -> None:
        core = await open_core(RealDisk(tmp_path), UUID_A)
        queued = [ask(core, credit(n, 1)) for n in range(1, 5)]
        core.stop()
        with pytest.raises(CoreStopped):
            ask(core, credit(9, 1))
        await core.run()
        assert [read_answers(await q, 1)[0].outcome for q in queued] == [CoreOutcome.DONE] * 4

    asyncio.run(scene())


async def _mark_after(core: Core, number: int) -> HistoryMark:
    await get_answers(core, credit(number, 1))
    return core.mark


def _refusal(
    core: Core, mark: HistoryMark | None, epoch: int = 0, protocol: int = PROTOCOL
) -> int | None:
    refusal = core.refusal_of(Hello(protocol, "s", "p", mark, epoch))
    return None if refusal is None else refusal.code


def test_a_client_is_served_only_by_the_core_it_knows(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running_core(RealDisk(tmp_path)) as core:
            assert _refusal(core, None) is None
            marks = [core.mark] + [await _mark_after(core, n) for n in range(1, 6)]
            for mark in marks:  # A core that is ahead may serve.
                assert _refusal(core, mark) is None
            last = marks[-1]
            other = HistoryMark(UUID(bytes=UUID_B), last.position, last.crc, last.epoch)
            assert _refusal(core, other) == SessionRefusal.OTHER_CORE
            ahead = HistoryMark(last.uuid, last.position + 1, last.crc, last.epoch)
            assert _refusal(core, ahead) == SessionRefusal.BEHIND
            forked = HistoryMark(last.uuid, last.position - 1, last.crc, last.epoch)
            assert _refusal(core, forked) == SessionRefusal.FORKED
            assert _refusal(core, last, epoch=last.epoch + 1) == SessionRefusal.STALE_EPOCH
            later = HistoryMark(last.uuid, last.position, last.crc, last.epoch + 1)
            assert _refusal(core, later) == SessionRefusal.STALE_EPOCH
            assert _refusal(core, last, protocol=1) == SessionRefusal.PROTOCOL

    asyncio.run(scene())


def test_marks_are_checked_within_a_window_that_survives_restarts(tmp_path: Path) -> None:
    async def scene() -> None:
        limits = TEST_LIMITS._replace(marks=16)
        async with running_core(RealDisk(tmp_path), limits) as core:
            marks = [await _mark_after(core, n) for n in range(1, 41)]
            await core.submit(FrameKind.SNAPSHOT, b"")
        async with running_core(RealDisk(tmp_path), limits) as core:
            later = core.mark.epoch
            assert _refusal(core, marks[0]) == SessionRefusal.TOO_OLD
            for mark in marks[-16:]:
                assert _refusal(core, mark, epoch=later) is None
            assert len(core.marks.positions) <= 18

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (FrameKind.ASK, b"x"),
        (FrameKind.ASK, bytes(wire.OPERATION.size * (wire.MAX_OPERATIONS + 1))),
        (FrameKind.QUERY, b"x"),
        (FrameKind.BALANCES, b"x"),
        (FrameKind.SET_STATUS, b"x"),
        (FrameKind.SET_STATUS, wire.STATUS.pack(ANN, 0)),
        (FrameKind.SET_STATUS, wire.STATUS.pack(ANN, 4)),
        (FrameKind.SET_STATUS, wire.STATUS.pack(bytes(13), 1)),
        (FrameKind.RETIRE, bytes(15)),
        (FrameKind.RETIRE, bytes(16) + b"store"),
        (FrameKind.REBIND, b"x"),
        (FrameKind.ASSETS, b"x"),
        (FrameKind.TOTALS, b"x"),
        (FrameKind.SNAPSHOT, b"x"),
        (FrameKind.HELLO, b""),
    ],
)
def test_a_malformed_request_is_refused(tmp_path: Path, kind: FrameKind, body: bytes) -> None:
    async def scene() -> None:
        async with running_core(RealDisk(tmp_path)) as core:
            with pytest.raises(MalformedFrame):
                await core.submit(kind, body)

    asyncio.run(scene())


def test_totals_are_the_sums_of_the_balances(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running_core(RealDisk(tmp_path)) as core:
            other = wire.account(2, 5, 1001)
            await get_answers(
                core, credit(1, 70), credit(2, 30, BOB), credit(3, 5, other), debit(4, 10)
            )
            reply = await core.submit(FrameKind.TOTALS, b"")
            sums = {(b, a): int.from_bytes(t) for b, a, t in _totals(reply)}
            assert sums == {(1, 5): 90, (2, 5): 5}

    asyncio.run(scene())


def _totals(reply: bytes) -> list[tuple[int, int, bytes]]:
    return list(struct.Struct(wire.TOTAL.format).iter_unpack(reply[wire.STAMP.size :]))
