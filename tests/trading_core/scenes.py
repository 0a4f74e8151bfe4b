"""Shared by the tests of the core: short names for operations, and cores to send them to."""

import asyncio
import hashlib
import itertools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from tidegate.core.wire import (
    STAMP,
    STATUS,
    AccountStatus,
    CoreOperation,
    CoreOutcome,
    CoreVerb,
    FrameKind,
    account,
    pack_operations,
    unpack_answers,
)
from tidegate.trading_core.book import Book, BookDraft
from tidegate.trading_core.core import Core, CoreLimits
from tidegate.trading_core.disk import Disk
from tidegate.trading_core.judge import judge

ASSETS = frozenset(range(1, 100))
UUID_A, UUID_B = bytes(range(16)), bytes(range(1, 17))
ANN = account(1, 5, 1001)
BOB = account(1, 5, 1002)
TEST_LIMITS = CoreLimits(snapshot_records=10**9, snapshot_bytes=2**40, marks=1000)
RETIRED = FrameKind.RETIRE, bytes(15) + b"\x09"
FROZEN = FrameKind.SET_STATUS, STATUS.pack(BOB, AccountStatus.FROZEN)


class OperationAnswer(NamedTuple):
    outcome: CoreOutcome
    position: int


def tid(number: int) -> bytes:
    return number.to_bytes(16)


def credit(number: int, amount: int, to: bytes = ANN, version: int = 0) -> CoreOperation:
    return CoreOperation(tid(number), version, CoreVerb.CREDIT, to, amount)


def debit(number: int, amount: int, of: bytes = ANN, version: int = 0) -> CoreOperation:
    return CoreOperation(tid(number), version, CoreVerb.DEBIT, of, amount)


def refund(
    number: int, amount: int, undoes: int = 0, version: int = 1, expect_done: bool = True
) -> CoreOperation:
    return CoreOperation(tid(number), version, CoreVerb.REFUND, ANN, amount, undoes, expect_done)


def read_answers(reply: bytes, count: int) -> list[OperationAnswer]:
    return [OperationAnswer(CoreOutcome(o), p) for o, p in unpack_answers(reply, count)]


class BookDriver:
    """Judges batches on a book without a log or disk. Each call is one batch."""

    def __init__(self) -> None:
        self.book = Book()
        self.book.assets = ASSETS
        self.records: list[bytes] = []

    def ask(self, *operations: CoreOperation) -> list[CoreOutcome]:
        return [outcome for outcome, _ in self.get_answers(*operations)]

    def get_answers(self, *operations: CoreOperation) -> list[OperationAnswer]:
        draft = BookDraft(self.book)
        answers, records = judge(draft, pack_operations(operations))
        self.book.apply(draft)
        self.records.append(records)
        return read_answers(bytes(STAMP.size) + answers, len(operations))

    def set_status(self, account: bytes, status: int) -> None:
        draft = BookDraft(self.book)
        draft.write_status(account, status)
        self.book.apply(draft)


def ask(core: Core, *operations: CoreOperation) -> asyncio.Future[bytes]:
    return core.submit(FrameKind.ASK, pack_operations(operations))


async def get_answers(core: Core, *operations: CoreOperation) -> list[OperationAnswer]:
    return read_answers(await ask(core, *operations), len(operations))


async def open_core(disk: Disk, uuid: bytes = UUID_A, limits: CoreLimits | None = None) -> Core:
    """Open a core that knows some assets, as if a store had sent them."""
    core = await Core.open(disk, uuid, time.time, limits)
    core.book.assets = core.book.assets or ASSETS
    return core


@asynccontextmanager
async def running_core(
    disk: Disk, limits: CoreLimits = TEST_LIMITS, uuid: bytes = UUID_A
) -> AsyncIterator[Core]:
    """A running core. It is stopped properly at the end."""
    core = await open_core(disk, uuid, limits)
    commits = asyncio.ensure_future(core.run())
    try:
        yield core
    finally:
        core.stop()
        await commits
        disk.unlock()


def digest(book: Book) -> str:
    """A hash of the whole state of a book."""
    accounts = [
        (a, book.balances[i], book.statuses[i], i) for a, i in sorted(book.accounts.items())
    ]
    totals = sorted((g, t) for g, t in book.totals.items() if t)
    state = (book.position, accounts, totals, sorted((key, book.find(key)) for key in book.memory))
    return hashlib.sha256(repr((state, book.floor, book.binding)).encode()).hexdigest()


def batches(count: int) -> Sequence[tuple[CoreOperation, ...]]:
    """A varied history: done, refused and undone operations, tombstones, small and huge amounts."""
    numbers = itertools.count(1)
    history: list[tuple[CoreOperation, ...]] = []
    for i in range(count):
        a, b, c, d = (next(numbers) for _ in range(4))
        history.append(
            (
                credit(a, 1000 + i, BOB if i % 3 == 0 else ANN),
                debit(b, 7 + i),
                refund(b, 7 + i),
                refund(c, 5, expect_done=False),
                debit(c, 5),
                debit(d, 10**30),
            )
        )
    return history


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("the condition never became true")
