"""What a restart recovers, which files it sets aside, and which damage it refuses."""

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.trading_core.disks import CountingDisk
from tests.trading_core.scenes import (
    ANN,
    BOB,
    FROZEN,
    RETIRED,
    UUID_A,
    UUID_B,
    BookDriver,
    ask,
    batches,
    credit,
    debit,
    digest,
    get_answers,
    running_core,
)
from tidegate.core.wire import PROTOCOL, AccountStatus, FrameKind, Hello, HistoryMark
from tidegate.trading_core import wal
from tidegate.trading_core.disk import RealDisk
from tidegate.trading_core.wal import LogDamaged, RecordKind, SegmentHeader


def _directory(tmp_path: Path, snapshots: int = 2) -> tuple[Path, HistoryMark, str]:
    """A data directory with this number of snapshots, and a log after the last one."""

    async def fill() -> tuple[HistoryMark, str]:
        async with running_core(RealDisk(tmp_path / "core")) as core:
            for number, batch in enumerate(batches(snapshots + 1)):
                await ask(core, *batch)
                if number < snapshots:
                    await core.submit(FrameKind.SNAPSHOT, b"")
            return core.mark, digest(core.book)

    mark, state = asyncio.run(fill())
    return tmp_path / "core", mark, state


def _reopened(directory: Path, uuid: bytes = UUID_B) -> tuple[HistoryMark, str, tuple[str, ...]]:
    async def reopen() -> tuple[HistoryMark, str, tuple[str, ...]]:
        async with running_core(RealDisk(directory), uuid=uuid) as core:
            return core.mark, digest(core.book), core.notes

    return asyncio.run(reopen())


def test_a_restart_gives_the_same_state_under_the_next_epoch(tmp_path: Path) -> None:
    directory, mark, state = _directory(tmp_path)
    again, found, notes = _reopened(directory)
    assert (again.uuid, again.position, again.crc) == (mark.uuid, mark.position, mark.crc)
    assert (again.epoch, found, notes) == (mark.epoch + 1, state, ())


def test_two_snapshots_are_kept_with_the_log_from_the_older_on(tmp_path: Path) -> None:
    directory, _, _ = _directory(tmp_path, snapshots=4)
    names = sorted(p.name for p in directory.iterdir())
    snapshots = [n.split("-")[1] for n in names if n.startswith("snapshot-")]
    logs = [n.split("-")[1] for n in names if n.startswith("log-")]
    assert len(snapshots) == 2
    assert logs == snapshots


def test_a_damaged_snapshot_is_set_aside_and_the_older_one_used(tmp_path: Path) -> None:
    directory, mark, state = _directory(tmp_path)
    newest = max(directory.glob("snapshot-*"))
    _flip(newest, -100)
    again, found, notes = _reopened(directory)
    assert (again.position, again.crc, found) == (mark.position, mark.crc, state)
    assert "is damaged and was set aside" in notes[0]
    assert (directory / f"damaged-{newest.name}").exists()


def test_both_snapshots_damaged_halts(tmp_path: Path) -> None:
    directory, _, _ = _directory(tmp_path, snapshots=3)
    for snapshot in directory.glob("snapshot-*"):
        _flip(snapshot, 50)
    with pytest.raises(LogDamaged, match="the log that begins at position 0 is missing"):
        _reopened(directory)


def test_the_first_snapshot_damaged_is_replaced_by_the_whole_log(tmp_path: Path) -> None:
    directory, mark, state = _directory(tmp_path, snapshots=1)
    _flip(max(directory.glob("snapshot-*")), 50)
    again, found, _ = _reopened(directory)
    assert (again.position, found) == (mark.position, state)


def _flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def _truncate_older(directory: Path) -> None:
    older, newer = sorted(directory.glob("log-*"))
    older.write_bytes(older.read_bytes()[:-1])
    _flip(max(directory.glob("snapshot-*")), 50)
    assert newer.exists()


DAMAGE: dict[str, Callable[[Path], object]] = {
    "log header": lambda d: _flip(max(d.glob("log-*")), 20),
    "lost log": lambda d: max(d.glob("log-*")).unlink(),
    "older log cut": _truncate_older,
    "renamed log": lambda d: max(d.glob("log-*")).rename(d / f"log-{'9' * 20}-{'0' * 9}1"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_halts_with_advice_what_to_do(tmp_path: Path, kind: str) -> None:
    directory, _, _ = _directory(tmp_path)
    DAMAGE[kind](directory)
    with pytest.raises(LogDamaged, match="Do not delete anything"):
        _reopened(directory)


def test_unrelated_files_are_not_changed(tmp_path: Path) -> None:
    directory, mark, _ = _directory(tmp_path)
    for name in ("log-of-the-cook", "snapshot-1.jpg", "notes"):
        (directory / name).write_text("mine")
    assert _reopened(directory)[0].position == mark.position
    assert (directory / "log-of-the-cook").read_text() == "mine"


def test_a_refused_start_unlocks_the_directory(tmp_path: Path) -> None:
    directory, _, _ = _directory(tmp_path)
    log = max(directory.glob("log-*"))
    content = log.read_bytes()
    _flip(log, 20)
    with pytest.raises(LogDamaged):
        _reopened(directory)
    log.write_bytes(content)
    _reopened(directory)


def test_a_segment_of_another_core_halts(tmp_path: Path) -> None:
    directory, _, _ = _directory(tmp_path / "a", snapshots=0)
    log = max(directory.glob("log-*"))

    async def other() -> None:
        async with running_core(RealDisk(tmp_path / "b"), uuid=UUID_B) as core:
            await get_answers(core, credit(1, 5))

    asyncio.run(other())
    position = log.name.split("-")[1]
    other_log = max((tmp_path / "b").glob("log-*"))
    renamed = directory / f"log-{int(position) + 3:020d}-0000000001"
    renamed.write_bytes(other_log.read_bytes())
    with pytest.raises(LogDamaged, match="was written under the name"):
        _reopened(directory)


def test_damage_in_the_middle_of_the_newest_log_halts(tmp_path: Path) -> None:
    async def fill() -> None:
        async with running_core(RealDisk(tmp_path)) as core:
            for batch in batches(3):
                await ask(core, *batch)

    asyncio.run(fill())
    _flip(max(tmp_path.glob("log-*")), 200)
    with pytest.raises(LogDamaged, match="continues after that"):
        _reopened(tmp_path)


def test_what_a_restart_recovered_may_not_be_lost_later(tmp_path: Path) -> None:
    directory, mark, _ = _directory(tmp_path, snapshots=0)
    _reopened(directory)
    log = max(directory.glob("log-*"))
    log.write_bytes(log.read_bytes()[:-1])
    with pytest.raises(LogDamaged, match=f"{mark.position} was durable"):
        _reopened(directory)


def _log(directory: Path, record: bytes, count: int = 1) -> str:
    """Write a log of one frame with one record and valid CRCs."""
    begin = wal.genesis(UUID_A)
    header = SegmentHeader(UUID_A, 1, begin, begin)
    payload = wal.pack_section(RecordKind.OPERATIONS, 1, record)
    frame, _ = wal.pack_frame(begin, count, payload)
    (directory / header.name).write_bytes(wal.pack_header(header) + frame)
    return header.name


def _credited_twice() -> list[bytes]:
    driver = BookDriver()
    driver.ask(credit(1, 5))
    driver.ask(credit(2, 5))
    return driver.records


def test_records_that_do_not_follow_halt_even_if_every_crc_is_valid(tmp_path: Path) -> None:
    name = _log(tmp_path, _credited_twice()[1])
    with pytest.raises(LogDamaged, match="does not fit the balance before it"):
        _reopened(tmp_path)
    assert [path.name for path in tmp_path.glob("*log-*")] == [name], "no copy is left"


def test_damage_is_reported_even_if_the_disk_is_too_full_for_the_copy(tmp_path: Path) -> None:
    """The log is copied while it is replayed. If both fail, the damage is reported."""
    name, disk = _log(tmp_path, _credited_twice()[1]), CountingDisk(RealDisk(tmp_path))
    disk.failure = "append", errno.ENOSPC

    async def reopen() -> None:
        async with running_core(disk):
            pass

    with pytest.raises(LogDamaged, match="does not fit the balance before it"):
        asyncio.run(reopen())
    assert [path.name for path in tmp_path.glob("*log-*")] == [name], "no copy is left"


def test_a_frame_with_a_wrong_record_count_halts(tmp_path: Path) -> None:
    _log(tmp_path, _credited_twice()[0], count=2)
    with pytest.raises(LogDamaged, match="has a wrong record count"):
        _reopened(tmp_path)


def test_a_torn_tail_is_cut_and_kept_in_a_file(tmp_path: Path) -> None:
    directory, mark, state = _directory(tmp_path)
    log = max(directory.glob("log-*"))
    log.write_bytes(log.read_bytes() + b"\xf5tg\xfa torn")
    again, found, notes = _reopened(directory)
    assert (again.position, again.crc, found) == (mark.position, mark.crc, state)
    assert "look like a torn write and were cut" in notes[0]
    assert (directory / f"torn-{log.name}").read_bytes() == b"\xf5tg\xfa torn"


def test_the_number_of_kept_torn_tails_is_limited(tmp_path: Path) -> None:
    directory, _, _ = _directory(tmp_path)
    for _ in range(12):
        log = max(directory.glob("log-*"))
        log.write_bytes(log.read_bytes() + b"torn")
        _reopened(directory)
    assert len(list(directory.glob("torn-*"))) == 8


def test_a_later_snapshot_format_is_refused_and_not_set_aside(tmp_path: Path) -> None:
    import zlib

    directory, _, _ = _directory(tmp_path)
    newest = max(directory.glob("snapshot-*"))
    content = bytearray(newest.read_bytes())
    content[8:10] = (3).to_bytes(2)
    content[-4:] = zlib.crc32(content[:-4]).to_bytes(4)
    newest.write_bytes(content)
    with pytest.raises(LogDamaged, match="format 3"):
        _reopened(directory)
    assert newest.exists()


def test_a_client_notices_at_hello_that_an_acknowledged_frame_was_damaged(tmp_path: Path) -> None:
    """The last frame may be cut like a torn write. Then a client knows a later position."""
    directory, mark, _ = _directory(tmp_path, snapshots=0)
    _flip(max(directory.glob("log-*")), -1)

    async def reopen() -> str:
        async with running_core(RealDisk(directory)) as core:
            refusal = core.refusal_of(Hello(PROTOCOL, "s", "p", mark))
            assert refusal is not None
            return refusal.message

    assert "BEHIND" in asyncio.run(reopen())


def test_a_failed_sync_is_not_trusted_after_a_restart(tmp_path: Path) -> None:
    """A readable log may exist in the page cache only, so a start copies it before it serves."""
    directory, _, _ = _directory(tmp_path, snapshots=0)
    before = max(directory.glob("log-*"))
    inode = before.stat().st_ino
    _reopened(directory)
    assert not before.exists()
    assert max(directory.glob("log-*")).stat().st_ino != inode


def test_statuses_and_floors_survive(tmp_path: Path) -> None:
    async def fill(snapshot: bool) -> str:
        async with running_core(RealDisk(tmp_path)) as core:
            await core.submit(*FROZEN)
            await core.submit(*RETIRED)
            await get_answers(core, credit(11, 10), debit(12, 4))
            if snapshot:
                await core.submit(FrameKind.SNAPSHOT, b"")
            assert core.book.floor >> 32 == 9
            assert core.book.status(BOB) == AccountStatus.FROZEN
            assert core.book.balance(ANN) == 6
            return digest(core.book)

    assert asyncio.run(fill(snapshot=False)) == asyncio.run(fill(snapshot=True))
    assert asyncio.run(fill(snapshot=False)) == _reopened(tmp_path)[1]
