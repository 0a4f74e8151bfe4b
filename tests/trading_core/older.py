"""A short history, and the directory that the version before `AccountState` wrote for it.

That version stored an account in four lists and its keys as numbers. `written_before` contains the
files that it wrote for this history, and `STATE` is the hash of its state at the end.
"""

import hashlib
from pathlib import Path

from tests.trading_core.scenes import (
    BOB,
    FROZEN,
    RETIRED,
    TEST_LIMITS,
    UUID_A,
    ask,
    batches,
    credit,
    debit,
    refund,
    tid,
)
from tidegate.core import wire
from tidegate.core.wire import OPERATION, VOID, Binding, CoreVerb, FrameKind
from tidegate.trading_core.book import Book
from tidegate.trading_core.core import Core
from tidegate.trading_core.disk import Disk

DIRECTORY = Path(__file__).parent / "written_before"
STATE = "027a446fb60f1b1c62d9348b903c0376099e84d4dbc36d9ffa48185c48fc5148"
WIDE = wire.account(3, 6, 2**63 - 1)


async def play(core: Core) -> None:
    """Plain moves, refusals, undos, tombstones, a void, repeats, and every other request."""
    await core.submit(FrameKind.BIND, wire.pack(Binding("store", "here")))
    await core.submit(FrameKind.ASSETS, wire.pack_assets([5, 6]))
    for batch in batches(5):
        await ask(core, *batch, *batch)
    await core.submit(*FROZEN)
    await ask(core, debit(90, 1, BOB), credit(91, 1, BOB), credit(92, 2**100, WIDE))
    await core.submit(*RETIRED)
    await core.submit(FrameKind.SNAPSHOT, b"")
    void = OPERATION.pack(tid(99) + bytes(4), CoreVerb.DEBIT, VOID, 0, WIDE, (7).to_bytes(16))
    await core.submit(FrameKind.ASK, void)
    await ask(core, debit(93, 2**99, WIDE), debit(94, 7), credit(95, 2**64 - 1, WIDE))
    await ask(core, refund(94, 7), refund(96, 1, expect_done=False), debit(93, 2**99, WIDE))


def state_hash(book: Book) -> str:
    """A hash of the state of a book, independent of how the book stores it."""
    statuses, balances = book.statuses, book.balances
    accounts = [(a.hex(), i, statuses[i], balances[i]) for a, i in book.accounts.items()]
    memory = [(_number(key), book.find(key)) for key in book.memory]
    totals = sorted((group.hex(), total) for group, total in book.totals.items())
    served = book.binding.store, book.binding.place, sorted(book.assets)
    state = (book.position, accounts, totals, memory, book.floor, served)
    return hashlib.sha256(repr(state).encode()).hexdigest()


def _number(key: bytes | int) -> int:
    return key if isinstance(key, int) else int.from_bytes(key)


async def open_older(disk: Disk) -> Core:
    return await Core.open(disk, UUID_A, lambda: 2e9, TEST_LIMITS)
