"""The core without sockets: group commit, the full queue, the failing disk, whom it serves."""

import asyncio
import errno
import struct
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from tests.trading_core.disks import SlowDisk, Watched
from tests.trading_core.scenes import (
    ANN,
    BOB,
    SMALL,
    UUID_A,
    UUID_B,
    Given,
    ask,
    batches,
    credit,
    debit,
    digest,
    given,
    hear,
    opened,
    refund,
    running,
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


def test_what_arrives_meanwhile_is_one_batch_and_one_sync(tmp_path: Path) -> None:
    async def scene() -> None:
        disk = Watched(RealDisk(tmp_path))
        async with running(disk) as core:
            before = disk.counts["fdatasync"]
            first = ask(core, credit(1, 100))
            await asyncio.sleep(0)  # The first is on its way to the disk now.
            others = [ask(core, debit(n, 1)) for n in range(2, 102)]
            await asyncio.gather(first, *others)
            assert disk.counts["fdatasync"] - before == 2
            assert core.place.position == 101
            assert len(core.marks.positions) == 3  # Genesis, and one for each frame.

    asyncio.run(scene())


def test_a_batch_is_bounded(tmp_path: Path) -> None:
    async def scene() -> None:
        disk = Watched(RealDisk(tmp_path))
        async with running(disk, SMALL._replace(batch_operations=10)) as core:
            before = disk.counts["fdatasync"]
            await asyncio.gather(*(ask(core, credit(n, 1), credit(n + 50, 1)) for n in range(50)))
            assert disk.counts["fdatasync"] - before == 10

    asyncio.run(scene())


def test_nothing_new_needs_no_sync(tmp_path: Path) -> None:
    async def scene() -> None:
        disk = Watched(RealDisk(tmp_path))
        async with running(disk) as core:
            first = await hear(core, credit(1, 100), debit(2, 500))
            before, place = disk.counts["fdatasync"], core.place
            assert await hear(core, credit(1, 100), debit(2, 500)) == first
            assert await hear(core, refund(7, 1)) == [Given(CoreOutcome.UNDO_UNFOUNDED, 0)]
            assert (disk.counts["fdatasync"], core.place) == (before, place)

    asyncio.run(scene())


def test_nobody_sees_and_nobody_is_told_what_is_not_durable(tmp_path: Path) -> None:
    async def scene() -> None:
        disk = SlowDisk(tmp_path)
        async with running(disk) as core:
            await hear(core, credit(1, 100))
            before, waiting = digest(core.book), disk.waiting
            with disk.held():
                original = ask(core, debit(2, 30))
                await until(lambda: disk.waiting > waiting)
                duplicate = ask(core, debit(2, 30))
                await asyncio.sleep(0.02)
                assert not original.done()
                assert not duplicate.done()
                assert digest(core.book) == before
                found = await core.submit(FrameKind.QUERY, tid(2) + bytes(4))
                assert given(found, 1) == [Given(CoreOutcome.NOTHING, 0)]
            assert given(await original, 1) == given(await duplicate, 1)

    asyncio.run(scene())


def test_a_full_queue_says_busy_and_the_same_key_executes_later(tmp_path: Path) -> None:
    async def scene() -> None:
        disk = SlowDisk(tmp_path)
        async with running(disk, SMALL._replace(queue_operations=3)) as core:
            waiting = disk.waiting
            with disk.held():
                under_way = ask(core, credit(1, 1))
                await until(lambda: disk.waiting > waiting)
                queued = ask(core, credit(2, 1), credit(3, 1))
                with pytest.raises(CoreBusy):
                    ask(core, credit(4, 1), credit(5, 1))
                small = ask(core, credit(6, 1))
            await asyncio.gather(under_way, queued, small)
            assert core.book.balance(ANN) == 4
            assert [g.outcome for g in await hear(core, credit(4, 1), credit(5, 1))] == [1, 1]
            assert core.book.balance(ANN) == 6

    asyncio.run(scene())


@pytest.mark.parametrize("limit", ["queue_bytes", "queue_requests"])
def test_the_queue_is_bounded_in_bytes_and_requests(tmp_path: Path, limit: str) -> None:
    async def scene() -> None:
        bound = {"queue_bytes": 2 * wire.OPERATION.size, "queue_requests": 2}[limit]
        async with running(RealDisk(tmp_path), SMALL._replace(**cast(Any, {limit: bound}))) as core:
            first = [ask(core, credit(1, 1)), ask(core, credit(2, 1))]
            with pytest.raises(CoreBusy):
                ask(core, credit(3, 1))
            await asyncio.gather(*first)
            await hear(core, credit(3, 1))

    asyncio.run(scene())


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("call", ["append", "fdatasync"])
def test_a_failing_disk_stops_the_core_and_nothing_undurable_is_told(
    tmp_path: Path, call: str, code: int
) -> None:
    async def scene() -> None:
        disk = Watched(RealDisk(tmp_path))
        core = await opened(disk, UUID_A, SMALL)
        commits = asyncio.ensure_future(core.run())
        told = await hear(core, credit(1, 100))
        mark, state = core.mark, digest(core.book)
        disk.fails = (call, code)
        syncs = disk.counts["fdatasync"]
        doomed, behind = ask(core, debit(2, 30)), ask(core, debit(3, 30))
        for reply in (doomed, behind):
            with pytest.raises(CoreStopped):
                await reply
        with pytest.raises(OSError, match="planted"):
            await commits
        with pytest.raises(CoreStopped):
            ask(core, debit(2, 30))
        assert digest(core.book) == state
        assert disk.counts["fdatasync"] - syncs <= 1  # Tried once, and never again.
        disk.unlock()
        async with running(RealDisk(tmp_path)) as again:
            assert again.refuses(Hello(PROTOCOL, "s", "p", mark)) is None
            assert await hear(again, credit(1, 100)) == told
            assert [g.outcome for g in await hear(again, debit(2, 30))] == [CoreOutcome.DONE]
            assert again.book.balance(ANN) in (70, 40)  # The third may have been written.

    asyncio.run(scene())


@pytest.mark.parametrize("spared", [0, 1], ids=["of the new segment", "of the snapshot"])
@pytest.mark.parametrize("call", ["create", "append", "fdatasync", "rename", "fsync_dir"])
def test_a_failing_snapshot_stops_the_core_with_the_real_error_and_loses_nothing(
    tmp_path: Path, call: str, spared: int
) -> None:
    async def scene() -> None:
        disk = Watched(RealDisk(tmp_path))
        core = await opened(disk, UUID_A, SMALL)
        commits = asyncio.ensure_future(core.run())
        told = await hear(core, credit(1, 100))
        disk.fails, disk.spared = (call, errno.ENOSPC), spared
        with pytest.raises(CoreStopped):
            await core.submit(FrameKind.SNAPSHOT, b"")
        with pytest.raises(OSError, match="planted"):
            await commits
        disk.unlock()
        async with running(RealDisk(tmp_path)) as again:
            assert await hear(again, credit(1, 100)) == told
            assert again.book.balance(ANN) == 100

    asyncio.run(scene())


def test_snapshots_are_taken_by_count_and_by_size(tmp_path: Path) -> None:
    async def scene(directory: Path, limits: CoreLimits) -> None:
        async with running(RealDisk(directory), limits) as core:
            for batch in batches(12):
                await ask(core, *batch)
            state = digest(core.book)
        async with running(RealDisk(directory), limits) as core:
            assert digest(core.book) == state

    by_count, by_size = SMALL._replace(snapshot_records=12), SMALL._replace(snapshot_bytes=900)
    for name, limits, count in (("a", by_count, 2), ("b", by_size, 2), ("c", SMALL, 0)):
        asyncio.run(scene(tmp_path / name, limits))
        assert len(list((tmp_path / name).glob("snapshot-*"))) == count


def test_a_snapshot_of_nothing_new_is_none(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(RealDisk(tmp_path)) as core:
            await core.submit(FrameKind.SNAPSHOT, b"")
            await hear(core, credit(1, 1))
            await core.submit(FrameKind.SNAPSHOT, b"")
            await core.submit(FrameKind.SNAPSHOT, b"")

    asyncio.run(scene())
    assert len(list(tmp_path.glob("snapshot-*"))) == 1


def test_one_directory_serves_one_core(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(RealDisk(tmp_path)):
            with pytest.raises(DirectoryLocked, match="in use by another trading core"):
                await opened(RealDisk(tmp_path), UUID_B)

    asyncio.run(scene())


def test_a_stopped_core_finishes_what_is_queued_and_takes_no_more(tmp_path: Path) -> None:
    async def scene() -> None:
        core = await opened(RealDisk(tmp_path), UUID_A)
        queued = [ask(core, credit(n, 1)) for n in range(1, 5)]
        core.stop()
        with pytest.raises(CoreStopped):
            ask(core, credit(9, 1))
        await core.run()
        assert [given(await q, 1)[0].outcome for q in queued] == [CoreOutcome.DONE] * 4

    asyncio.run(scene())


async def _mark_after(core: Core, number: int) -> HistoryMark:
    await hear(core, credit(number, 1))
    return core.mark


def _refusal(
    core: Core, mark: HistoryMark | None, epoch: int = 0, protocol: int = PROTOCOL
) -> int | None:
    refusal = core.refuses(Hello(protocol, "s", "p", mark, epoch))
    return None if refusal is None else refusal.code


def test_a_client_is_served_only_by_the_core_it_knows(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(RealDisk(tmp_path)) as core:
            assert _refusal(core, None) is None
            marks = [core.mark] + [await _mark_after(core, n) for n in range(1, 6)]
            for mark in marks:  # The core is ahead: fine.
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


def test_marks_are_held_to_within_a_window_that_survives_restarts(tmp_path: Path) -> None:
    async def scene() -> None:
        limits = SMALL._replace(marks=16)
        async with running(RealDisk(tmp_path), limits) as core:
            marks = [await _mark_after(core, n) for n in range(1, 41)]
            await core.submit(FrameKind.SNAPSHOT, b"")
        async with running(RealDisk(tmp_path), limits) as core:
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
def test_a_request_that_makes_no_sense_is_refused(
    tmp_path: Path, kind: FrameKind, body: bytes
) -> None:
    async def scene() -> None:
        async with running(RealDisk(tmp_path)) as core:
            with pytest.raises(MalformedFrame):
                await core.submit(kind, body)

    asyncio.run(scene())


def test_totals_are_the_sums_of_the_balances(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(RealDisk(tmp_path)) as core:
            other = wire.account(2, 5, 1001)
            await hear(core, credit(1, 70), credit(2, 30, BOB), credit(3, 5, other), debit(4, 10))
            reply = await core.submit(FrameKind.TOTALS, b"")
            sums = {(b, a): int.from_bytes(t) for b, a, t in _totals(reply)}
            assert sums == {(1, 5): 90, (2, 5): 5}

    asyncio.run(scene())


def _totals(reply: bytes) -> list[tuple[int, int, bytes]]:
    return list(struct.Struct(wire.TOTAL.format).iter_unpack(reply[wire.STAMP.size :]))
