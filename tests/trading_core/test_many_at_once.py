"""Batches large enough to be worked by columns: each thing that may stand among plain moves."""

import asyncio
import errno
import random
from pathlib import Path

import pytest

from tests.trading_core.disks import Watched
from tests.trading_core.scenes import (
    ANN,
    ASSETS,
    BOB,
    SMALL,
    UUID_A,
    Desk,
    ask,
    credit,
    debit,
    digest,
    given,
    hear,
    opened,
    refund,
    running,
    tid,
)
from tests.trading_core.test_one_rule import replayed_the_long_way, the_long_way
from tidegate.core.money import MAX_AMOUNT
from tidegate.core.wire import (
    ANSWER,
    RECORD,
    STATUS,
    VOID,
    AccountStatus,
    CoreOperation,
    CoreOutcome,
    CoreVerb,
    FrameKind,
    account,
    pack_operations,
    rows,
)
from tidegate.trading_core import snapshot, wal
from tidegate.trading_core.book import Book, BookDraft, group_totals
from tidegate.trading_core.core import CoreStopped
from tidegate.trading_core.disk import RealDisk
from tidegate.trading_core.judge import judge
from tidegate.trading_core.move_columns import AT_ONCE
from tidegate.trading_core.operation_memory import MOST_TOGETHER, MoveRun
from tidegate.trading_core.snapshot import CoreState, RecentPositions

DONE, SHORT = CoreOutcome.DONE, CoreOutcome.INSUFFICIENT_BALANCE
FEW_OWNERS = [account(1, 5, owner) for owner in range(1, 30)]
WIDE = (1, 7, 2**31, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**100, MAX_AMOUNT, MAX_AMOUNT + 1, 0)
FLOOR = 1_000


def plain(dice: random.Random) -> CoreOperation:
    verb = dice.choice((CoreVerb.DEBIT, CoreVerb.CREDIT, CoreVerb.CREDIT))
    amount = dice.choice(WIDE) if dice.random() < 0.02 else dice.randrange(1, 1_000)
    number = dice.randrange(FLOOR - 20, 2**40)
    return CoreOperation(tid(number), 0, verb, dice.choice(FEW_OWNERS), amount)


def odd(dice: random.Random, before: list[CoreOperation]) -> CoreOperation:
    """What is no new plain move, mostly about one that was asked before."""
    one = dice.choice(before)
    match dice.randrange(9):
        case 0:
            return one
        case 1:
            return one._replace(amount=one.amount + 1)
        case 2:
            return one._replace(account=dice.choice(FEW_OWNERS))
        case 3:
            return one._replace(verb=3, version=1, undoes=0, expect_done=True)
        case 4:
            return one._replace(verb=3, version=dice.randrange(3), undoes=0, expect_done=False)
        case 5:  # It buries what may be asked later in the same batch.
            return one._replace(transfer_id=tid(7_000), version=9, verb=3, undoes=dice.randrange(3))
        case 6:
            return one._replace(transfer_id=tid(7_000), version=dice.randrange(3))
        case 7:
            new = account(dice.choice((1, 2)), dice.choice((5, 6)), dice.randrange(1, 2**63))
            return plain(dice)._replace(account=new)
        case _:
            return one._replace(version=dice.randrange(4), verb=dice.randrange(5), undoes=VOID)


def batch(dice: random.Random, before: list[CoreOperation], count: int, oddness: float) -> bytes:
    for _ in range(count):
        strange = before and dice.random() < oddness
        before.append(odd(dice, before) if strange else plain(dice))
    return pack_operations(before[-count:])


def history(seed: int) -> list[list[bytes | tuple[bytes, int] | int]]:
    """Groups of requests: operations, statuses and floors, as the core takes them in one draft."""
    dice, before = random.Random(seed), list[CoreOperation]()
    found: list[list[bytes | tuple[bytes, int] | int]] = []
    for _ in range(6):
        group: list[bytes | tuple[bytes, int] | int] = []
        for _ in range(dice.randrange(1, 4)):
            count, oddness = (
                dice.choice((5, 40, 3 * MOST_TOGETHER, 300)),
                dice.choice((0, 0.03, 0.3)),
            )
            group.append(batch(dice, before, count, oddness))
            if dice.random() < 0.3:
                group.append((dice.choice(FEW_OWNERS), dice.choice((1, 2, 3))))
            if dice.random() < 0.1:
                group.append(FLOOR + dice.randrange(20))
        found.append(group)
    return found


@pytest.mark.parametrize("seed", range(12))
def test_by_columns_and_one_by_one_the_same_is_judged_recorded_and_remembered(seed: int) -> None:
    by_columns, single, again, again_single = books = [Book() for _ in range(4)]
    for book in books:
        book.assets = ASSETS
    for group in history(seed):
        drafts = [BookDraft(by_columns), BookDraft(single), BookDraft(again_single)]
        for request in group:
            if isinstance(request, bytes):
                answers, records = judge(drafts[0], request)
                assert (answers, records) == the_long_way(drafts[1], request)
                again.replay(records)
                replayed_the_long_way(drafts[2], records)
                continue
            drafts.append(BookDraft(again))
            for draft in drafts:
                if isinstance(request, tuple):
                    draft.note_status(*request)
                else:
                    draft.note_floor(request)
            again.apply(drafts.pop())
        for draft in drafts:
            draft.book.apply(draft)
        again.recount()
        assert len({digest(book) for book in books}) == 1
        assert dict(group_totals(by_columns)) == by_columns.totals
    content = [b"".join(snapshot.chunks(_state(book))) for book in books[:3]]
    assert content[0] == content[1] == content[2], "the order of a snapshot is the same, too"
    assert any(isinstance(kept, MoveRun) for kept in by_columns.memory.values())
    assert any(isinstance(kept, MoveRun) for kept in again.memory.values())
    # A snapshot has numbered the runs: that changes nothing, now or when it is written again.
    assert len({digest(book) for book in books}) == 1
    assert b"".join(snapshot.chunks(_state(by_columns))) == content[0]
    for key in by_columns.memory:
        assert by_columns.find(key) == single.find(key) == again.find(key)


def _state(book: Book) -> CoreState:
    place = wal.LogPosition(book.position, 1)
    return CoreState(UUID_A, 1, place, book, RecentPositions(10, place))


def many(count: int, first: int = 10_000) -> list[CoreOperation]:
    return [credit(first + n, 1 + n, FEW_OWNERS[n % 29]) for n in range(count)]


def desk_with(owners: list[bytes], each: int = 10**6) -> Desk:
    desk = Desk()
    desk.ask(*(credit(1 + n, each, owner) for n, owner in enumerate(owners)))
    return desk


def test_a_duplicate_inside_a_large_batch_is_one_operation() -> None:
    desk = desk_with(FEW_OWNERS)
    asked = many(300)
    asked[200] = asked[100]
    heard = desk.hear(*asked)
    assert heard[200] == heard[100]
    assert [g.outcome for g in heard] == [DONE] * 300
    assert [g.position for g in desk.hear(*asked)] == [g.position for g in heard]
    records = list(rows(RECORD, desk.records[1]))
    assert len(records) == 299
    assert sum(desk.book.balances) == 29 * 10**6 + sum(o.amount for o in set(asked))


def test_a_key_with_another_amount_inside_a_large_batch_is_refused() -> None:
    desk = desk_with(FEW_OWNERS)
    asked = many(300)
    asked[250] = asked[3]._replace(amount=10**5)
    outcomes = desk.ask(*asked)
    assert outcomes[250] == CoreOutcome.KEY_REUSED
    assert [o for n, o in enumerate(outcomes) if n != 250] == [DONE] * 299
    again = desk.ask(*asked)
    assert again == outcomes
    late = desk.ask(*(o._replace(amount=o.amount + 1) for o in asked))
    assert set(late) == {CoreOutcome.KEY_REUSED}


def test_each_answer_of_a_run_can_be_looked_up_and_outlives_a_restart() -> None:
    desk = desk_with(FEW_OWNERS)
    asked = [o._replace(verb=1, amount=5 if n % 7 else 10**9) for n, o in enumerate(many(300))]
    heard = desk.hear(*asked)
    assert {g.outcome for g in heard} == {DONE, SHORT}
    again = Book()
    for records in desk.records:
        again.replay(records)
    for operation, one in zip(asked, heard, strict=True):
        key = operation.transfer_id + operation.version.to_bytes(4)
        assert desk.book.answer(key) == again.answer(key) == one


def test_a_request_sees_the_large_one_before_it_in_the_same_batch() -> None:
    desk = desk_with(FEW_OWNERS)
    draft, asked = BookDraft(desk.book), pack_operations(many(100))
    answers, _ = judge(draft, asked)
    assert judge(draft, asked) == (answers, b"")
    other = judge(draft, pack_operations([o._replace(amount=10**7) for o in many(100)]))
    assert other == (ANSWER.pack(CoreOutcome.KEY_REUSED, 0) * 100, b"")


def test_an_undo_buries_what_comes_later_in_the_same_large_batch() -> None:
    desk = desk_with([ANN, BOB])
    asked = [credit(100 + n, 1, BOB) for n in range(100)]
    asked[20], asked[60] = refund(777, 5, expect_done=False), debit(777, 5)
    asked[30], asked[70] = debit(778, 5), refund(778, 5)
    outcomes = desk.ask(*asked)
    assert [outcomes[at] for at in (20, 60, 30, 70)] == [
        *(CoreOutcome.TOMBSTONE, CoreOutcome.UNDONE),
        *(DONE, DONE),
    ]
    assert desk.book.balance(ANN) == 10**6


def test_an_account_that_a_large_batch_opens_is_used_in_it() -> None:
    desk = desk_with(FEW_OWNERS)
    new = account(1, 5, 99_999)
    asked = many(100)
    asked[10], asked[50], asked[90] = (
        credit(1, 70, new, 5),
        debit(2, 30, new, 5),
        debit(3, 41, new, 5),
    )
    asked[5] = debit(4, 1, new, 5)
    outcomes = desk.ask(*asked)
    assert [outcomes[at] for at in (5, 10, 50, 90)] == [
        *(CoreOutcome.SOURCE_ACCOUNT_NOT_FOUND, DONE, DONE, SHORT),
    ]
    assert desk.book.balance(new) == 40


@pytest.mark.parametrize("edge", [2**63, 2**64, MAX_AMOUNT])
@pytest.mark.parametrize("verb", [CoreVerb.CREDIT, CoreVerb.DEBIT])
def test_balances_at_the_edges_are_exact_and_never_exceeded(edge: int, verb: CoreVerb) -> None:
    desk = desk_with(FEW_OWNERS)
    desk.ask(credit(900, edge - 3), debit(901, 2, BOB), credit(902, MAX_AMOUNT, BOB))
    asked = many(AT_ONCE * 2 + 9)
    asked[40:46] = [CoreOperation(tid(950 + n), 0, verb, ANN, 1) for n in range(6)]
    asked[60] = debit(960, MAX_AMOUNT, BOB)
    asked[61] = credit(961, MAX_AMOUNT, BOB)
    asked[62] = credit(962, 1, BOB)
    outcomes = desk.ask(*asked)
    assert outcomes[60:63] == [DONE, DONE, CoreOutcome.BALANCE_OVERFLOW]
    over = CoreOutcome.BALANCE_OVERFLOW
    wrong = [over] * 3 if edge == MAX_AMOUNT and verb is CoreVerb.CREDIT else [DONE] * 3
    assert outcomes[40:46] == [DONE] * 3 + wrong
    again = Book()
    for records in desk.records:
        again.replay(records)
    again.recount()
    assert digest(again) == digest(desk.book)


def test_an_account_frozen_between_two_requests_of_one_batch_is_frozen(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(RealDisk(tmp_path)) as core:
            await hear(core, *(credit(1 + n, 100, o) for n, o in enumerate([ANN, BOB])))
            first = [debit(100 + n, 1, ANN if n % 2 else BOB) for n in range(60)]
            second = [debit(200 + n, 1, ANN if n % 2 else BOB) for n in range(60)]
            replies = [ask(core, *first)]
            frozen = core.submit(FrameKind.SET_STATUS, STATUS.pack(BOB, AccountStatus.FROZEN))
            replies.append(ask(core, *second))
            await asyncio.gather(*replies, frozen)
            assert len(core.marks.positions) == 3, "genesis, and one frame for all"
            assert {g.outcome for g in given(replies[0].result(), 60)} == {DONE}
            outcomes = [g.outcome for g in given(replies[1].result(), 60)]
            assert outcomes == [CoreOutcome.ACCOUNT_FROZEN, DONE] * 30
            assert (core.book.balance(ANN), core.book.balance(BOB)) == (40, 70)
            state = digest(core.book)
        async with running(RealDisk(tmp_path)) as core:
            assert digest(core.book) == state
            assert [g.outcome for g in await hear(core, *second)] == outcomes

    asyncio.run(scene())


def test_a_floor_in_the_middle_of_a_run_retires_only_what_is_below(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(RealDisk(tmp_path)) as core:
            await hear(core, *(credit(1 + n, 100, owner) for n, owner in enumerate(FEW_OWNERS)))
            asked = many(200)
            heard = await hear(core, *asked)
            await core.submit(FrameKind.RETIRE, tid(10_000 + 70))
            assert len(core.book.memory) == 130
            again = await hear(core, *asked)
            assert {g.outcome for g in again[:70]} == {CoreOutcome.RETIRED}
            assert again[70:] == heard[70:]
            await core.submit(FrameKind.SNAPSHOT, b"")
            await hear(core, *many(10, 20_000))
            assert await hear(core, *asked) == again
            await core.submit(FrameKind.RETIRE, tid(10_000 + 75))
            again = await hear(core, *asked)
            assert {g.outcome for g in again[:75]} == {CoreOutcome.RETIRED}
            assert again[75:] == heard[75:]
            await core.submit(FrameKind.SNAPSHOT, b"")
            state = digest(core.book)
        async with running(RealDisk(tmp_path)) as core:
            assert digest(core.book) == state
            assert await hear(core, *asked) == again

    asyncio.run(scene())


def test_a_snapshot_between_large_batches_holds_all_that_was_answered(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(RealDisk(tmp_path)) as core:
            await hear(core, *(credit(1 + n, 100, owner) for n, owner in enumerate(FEW_OWNERS)))
            asked = [many(150, 10_000 + 1_000 * n) for n in range(6)]
            replies = []
            for number, each in enumerate(asked):
                replies.append(ask(core, *each))
                if number % 2:
                    replies.append(core.submit(FrameKind.SNAPSHOT, b""))
            await asyncio.gather(*replies)
            heard = [await hear(core, *each) for each in asked]
            state = digest(core.book)
        async with running(RealDisk(tmp_path)) as core:
            assert digest(core.book) == state
            assert [await hear(core, *each) for each in asked] == heard

    asyncio.run(scene())


@pytest.mark.parametrize("call", ["append", "fdatasync"])
def test_a_large_batch_that_finds_no_room_leaves_nothing_in_memory(
    tmp_path: Path, call: str
) -> None:
    async def scene() -> None:
        disk = Watched(RealDisk(tmp_path))
        core = await opened(disk, UUID_A, SMALL)
        commits = asyncio.ensure_future(core.run())
        await hear(core, *(credit(1 + n, 100, owner) for n, owner in enumerate(FEW_OWNERS)))
        state = digest(core.book)
        disk.fails = (call, errno.ENOSPC)
        asked = many(300)
        with pytest.raises(CoreStopped):
            await ask(core, *asked)
        with pytest.raises(OSError, match="planted"):
            await commits
        assert digest(core.book) == state
        disk.unlock()
        async with running(RealDisk(tmp_path)) as again:
            assert {g.outcome for g in await hear(again, *asked)} == {DONE}
            amounts = sum(o.amount for o in asked)
            assert sum(again.book.totals.values()) == 2_900 + amounts, "each was done once"

    asyncio.run(scene())
