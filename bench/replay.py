"""The trading core alone: how fast it applies batches, and how fast it replays its log."""

import asyncio
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from bench.spec import ASSET
from tidegate.core import wire
from tidegate.core.wire import CoreOperation, CoreVerb, FrameKind
from tidegate.trading_core.core import Core, CoreLimits
from tidegate.trading_core.disk import RealDisk

BATCH, SEED, STARTS = 1_024, 7, 3
REPLAYED_ACCOUNTS = 10_000
UUID = bytes(range(16))
# No snapshots, so that the complete log is replayed.
ONE_LOG = CoreLimits(snapshot_records=10**9, snapshot_bytes=2**40)


def bodies(records: int, accounts: int) -> Iterator[bytes]:
    """Credits of random accounts under random ids, packed as they come over the wire."""
    dice = random.Random(SEED)
    owners = [wire.account(wire.CoreBook.SPOT, ASSET, owner) for owner in range(1, accounts + 1)]
    for first in range(0, records, BATCH):
        yield wire.pack_operations(
            CoreOperation(dice.randbytes(16), 0, CoreVerb.CREDIT, dice.choice(owners), 1)
            for _ in range(min(BATCH, records - first))
        )


def apply_per_s(directory: Path, accounts: int, records: int) -> float:
    """Operations per second in durable batches of 1 024, on accounts that already exist."""
    return asyncio.run(_apply(directory / "applied", accounts, records))


async def _apply(directory: Path, accounts: int, records: int) -> float:
    core = await Core.open(RealDisk(directory), UUID, time.time, ONE_LOG)
    running = asyncio.create_task(core.run())
    await core.submit(FrameKind.ASSETS, wire.pack_assets([ASSET]))
    for body in _one_credit_each(accounts):
        await core.submit(FrameKind.ASK, body)
    prepared = list(bodies(records, accounts))
    started_s = time.perf_counter()
    for body in prepared:
        await core.submit(FrameKind.ASK, body)
    seconds = time.perf_counter() - started_s
    assert sum(core.book.totals.values()) == accounts + records, "an operation was not executed"
    core.stop()
    await running
    shutil.rmtree(directory)
    return round(records / seconds)


def _one_credit_each(accounts: int) -> Iterator[bytes]:
    for first in range(1, accounts + 1, BATCH):
        yield wire.pack_operations(
            CoreOperation(
                owner.to_bytes(16),
                0,
                CoreVerb.CREDIT,
                wire.account(wire.CoreBook.SPOT, ASSET, owner),
                1,
            )
            for owner in range(first, min(first + BATCH, accounts + 1))
        )


def replay_per_s(directory: Path, records: int) -> dict[str, object]:
    """Records per second when the core starts from a log: the median of some starts."""
    return asyncio.run(_replay(directory / "replayed", records))


async def _replay(directory: Path, records: int) -> dict[str, object]:
    core = await Core.open(RealDisk(directory), UUID, time.time, ONE_LOG)
    running = asyncio.create_task(core.run())
    await core.submit(FrameKind.ASSETS, wire.pack_assets([ASSET]))
    for body in bodies(records, REPLAYED_ACCOUNTS):
        await core.submit(FrameKind.ASK, body)
    total = sum(core.book.totals.values())
    core.stop()
    await running
    core.disk.unlock()
    seconds = sorted([await _start(directory, records, total) for _ in range(STARTS)])
    shutil.rmtree(directory)
    median = seconds[STARTS // 2]
    return {"records": records, "seconds": seconds, "per_s": round(records / median)}


async def _start(directory: Path, records: int, total: int) -> float:
    started_s = time.perf_counter()
    core = await Core.open(RealDisk(directory), UUID, time.time, ONE_LOG)
    seconds = time.perf_counter() - started_s
    assert core.log_position.position == 1 + records, "not all records and the asset's were read"
    assert sum(core.book.totals.values()) == total == records, "money was created or lost"
    core.log.close()
    core.disk.unlock()
    return round(seconds, 2)
