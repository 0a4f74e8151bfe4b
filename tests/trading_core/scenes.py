"""What the tests of the core are played with: short names for operations, and a core to ask."""

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
SMALL = CoreLimits(snapshot_records=10**9, snapshot_bytes=2**40, marks=1000)
RETIRED = FrameKind.RETIRE, bytes(15) + b"\x09"
FROZEN = FrameKind.SET_STATUS, STATUS.pack(BOB, AccountStatus.FROZEN)


class Given(NamedTuple):
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


def given(reply: bytes, count: int) -> list[Given]:
    return [Given(CoreOutcome(o), p) for o, p in unpack_answers(reply, count)]


class Desk:
    """A book with nothing behind it: each call is a batch, durable at once."""

    def __init__(self) -> None:
        self.book = Book()
        self.book.assets = ASSETS
        self.records: list[bytes] = []

    def ask(self, *operations: CoreOperation) -> list[CoreOutcome]:
        return [outcome for outcome, _ in self.hear(*operations)]

    def hear(self, *operations: CoreOperation) -> list[Given]:
        draft = BookDraft(self.book)
        answers, records = judge(draft, pack_operations(operations))
        self.book.apply(draft)
        self.records.append(records)
        return given(bytes(STAMP.size) + answers, len(operations))

    def admit(self, account: bytes, status: int) -> None:
        draft = BookDraft(self.book)
        draft.note_status(account, status)
        self.book.apply(draft)


def ask(core: Core, *operations: CoreOperation) -> asyncio.Future[bytes]:
    return core.submit(FrameKind.ASK, pack_operations(operations))


async def hear(core: Core, *operations: CoreOperation) -> list[Given]:
    return given(await ask(core, *operations), len(operations))


async def opened(disk: Disk, uuid: bytes = UUID_A, limits: CoreLimits | None = None) -> Core:
    """A core that knows some assets, as if a store had told it."""
    core = await Core.open(disk, uuid, time.time, limits)
    core.book.assets = core.book.assets or ASSETS
    return core


@asynccontextmanager
async def running(
    disk: Disk, limits: CoreLimits = SMALL, uuid: bytes = UUID_A
) -> AsyncIterator[Core]:
    """A core that is stopped in order at the end."""
    core = await opened(disk, uuid, limits)
    commits = asyncio.ensure_future(core.run())
    try:
        yield core
    finally:
        core.stop()
        await commits
        disk.unlock()


def digest(book: Book) -> str:
    """A hash of everything that a book knows."""
    accounts = [
        (a, book.balances[i], book.statuses[i], i) for a, i in sorted(book.accounts.items())
    ]
    totals = sorted((g, t) for g, t in book.totals.items() if t)
    known = (book.position, accounts, totals, sorted((key, book.find(key)) for key in book.memory))
    return hashlib.sha256(repr((known, book.floor, book.binding)).encode()).hexdigest()


def batches(count: int) -> Sequence[tuple[CoreOperation, ...]]:
    """A varied history: done and refused, undone and buried, small and huge amounts."""
    numbers = itertools.count(1)
    found: list[tuple[CoreOperation, ...]] = []
    for i in range(count):
        a, b, c, d = (next(numbers) for _ in range(4))
        found.append(
            (
                credit(a, 1000 + i, BOB if i % 3 == 0 else ANN),
                debit(b, 7 + i),
                refund(b, 7 + i),
                refund(c, 5, expect_done=False),
                debit(c, 5),
                debit(d, 10**30),
            )
        )
    return found


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came true")
