"""Batches large enough to be judged by columns, with every other kind of operation in them."""

import asyncio
import errno
import random
from pathlib import Path

import pytest

from tests.trading_core.disks import CountingDisk
from tests.trading_core.scenes import (
    ANN,
    ASSETS,
    BOB,
    TEST_LIMITS,
    UUID_A,
    BookDriver,
    ask,
    credit,
    debit,
    digest,
    get_answers,
    open_core,
    read_answers,
    refund,
    running_core,
    tid,
)
from tests.trading_core.test_one_rule import judge_row_by_row, replay_row_by_row
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
from tidegate.trading_core.move_columns import ROWS_PER_CALL
from tidegate.trading_core.operation_memory import MAX_RUN, MoveRun
from tidegate.trading_core.snapshot import CoreState, RecentPositions

DONE, SHORT = CoreOutcome.DONE, CoreOutcome.INSUFFICIENT_BALANCE
FEW_OWNERS = [account(1, 5, owner) for owner in range(1, 30)]
OPENING_CREDITS = [credit(1 + n, 100, owner) for n, owner in enumerate(FEW_OWNERS)]
WIDE = (1, 7, 2**31, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**100, MAX_AMOUNT, MAX_AMOUNT + 1, 0)
FLOOR = 1_000


def plain_move(dice: random.Random) -> CoreOperation:
    verb = dice.choice((CoreVerb.DEBIT, CoreVerb.CREDIT, CoreVerb.CREDIT))
    amount = dice.choice(WIDE) if dice.random() < 0.02 else dice.randrange(1, 1_000)
    number = dice.randrange(FLOOR - 20, 2**40)
    return CoreOperation(tid(number), 0, verb, dice.choice(FEW_OWNERS), amount)


def odd_operation(dice: random.Random, before: list[CoreOperation]) -> CoreOperation:
    """An operation that is not a new plain move, mostly a variation of an earlier one."""
    earlier = dice.choice(before)
    match dice.randrange(9):
        case 0:
            return earlier
        case 1:
            return earlier._replace(amount=earlier.amount + 1)
        case 2:
            return earlier._replace(account=dice.choice(FEW_OWNERS))
        case 3:
            return earlier._replace(verb=3, version=1, undoes=0, expect_done=True)
        case 4:
            return earlier._replace(verb=3, version=dice.randrange(3), undoes=0, expect_done=False)
        case 5:  # A tombstone for an operation that may come later in the same batch.
            return earlier._replace(
                transfer_id=tid(7_000), version=9, verb=3, undoes=dice.randrange(3)
            )
        case 6:
            return earlier._replace(transfer_id=tid(7_000), version=dice.randrange(3))
        case 7:
            new = account(dice.choice((1, 2)), dice.choice((5, 6)), dice.randrange(1, 2**63))
            return plain_move(dice)._replace(account=new)
        case _:
            return earlier._replace(version=dice.randrange(4), verb=dice.randrange(5), undoes=VOID)


def batch(dice: random.Random, before: list[CoreOperation], count: int, oddness: float) -> bytes:
    for _ in range(count):
        is_odd = before and dice.random() < oddness
        before.append(odd_operation(dice, before) if is_odd else plain_move(dice))
    return pack_operations(before[-count:])


def history(seed: int) -> list[list[bytes | tuple[bytes, int] | int]]:
    """Groups of requests, each judged in one draft: operations, statuses and floors."""
    dice, before = random.Random(seed), list[CoreOperation]()
    groups: list[list[bytes | tuple[bytes, int] | int]] = []
    for _ in range(6):
        group: list[bytes | tuple[bytes, int] | int] = []
        for _ in range(dice.randrange(1, 4)):
            count = dice.choice((5, 40, 3 * MAX_RUN, 300))
            oddness = dice.choice((0, 0.03, 0.3))
            group.append(batch(dice, before, count, oddness))
            if dice.random() < 0.3:
                group.append((dice.choice(FEW_OWNERS), dice.choice((1, 2, 3))))
            if dice.random() < 0.1:
                group.append(FLOOR + dice.randrange(20))
        groups.append(group)
    return groups


@pytest.mark.parametrize("seed", range(12))
def test_judging_by_columns_gives_the_same_state_as_row_by_row(seed: int) -> None:
    by_columns, by_rows, fast_replay, row_replay = books = [Book() for _ in range(4)]
    for book in books:
        book.assets = ASSETS
    for group in history(seed):
        drafts = [BookDraft(by_columns), BookDraft(by_rows), BookDraft(row_replay)]
        for request in group:
            if isinstance(request, bytes):
                answers, records = judge(drafts[0], request)
                assert (answers, records) == judge_row_by_row(drafts[1], request)
                fast_replay.replay(records)
                replay_row_by_row(drafts[2], records)
                continue
            drafts.append(BookDraft(fast_replay))
            for draft in drafts:
                if isinstance(request, tuple):
                    draft.write_status(*request)
                else:
                    draft.write_floor(request)
            fast_replay.apply(drafts.pop())
        for draft in drafts:
            draft.book.apply(draft)
        fast_replay.recount()
        assert len({digest(book) for book in books}) == 1
        assert dict(group_totals(by_columns)) == by_columns.totals
    content = [b"".join(snapshot.chunks(_state(book))) for book in books[:3]]
    assert content[0] == content[1] == content[2], "the snapshots have the same order"
    assert any(isinstance(entry, MoveRun) for entry in by_columns.memory.values())
    assert any(isinstance(entry, MoveRun) for entry in fast_replay.memory.values())
    # The snapshot has packed the entries of the runs. That changes neither the state nor a second
    # snapshot.
    assert len({digest(book) for book in books}) == 1
    assert b"".join(snapshot.chunks(_state(by_columns))) == content[0]
    for key in by_columns.memory:
        assert by_columns.find(key) == by_rows.find(key) == fast_replay.find(key)


def _state(book: Book) -> CoreState:
    position = wal.LogPosition(book.position, 1)
    return CoreState(UUID_A, 1, position, book, RecentPositions(10, position))


def credits_of(count: int, first: int = 10_000) -> list[CoreOperation]:
    return [credit(first + n, 1 + n, FEW_OWNERS[n % 29]) for n in range(count)]


def driver_with(owners: list[bytes], balance: int = 10**6) -> BookDriver:
    driver = BookDriver()
    driver.ask(*(credit(1 + n, balance, owner) for n, owner in enumerate(owners)))
    return driver


def test_a_duplicate_inside_a_large_batch_is_one_operation() -> None:
    driver = driver_with(FEW_OWNERS)
    operations = credits_of(300)
    operations[200] = operations[100]
    answers = driver.get_answers(*operations)
    assert answers[200] == answers[100]
    assert [g.outcome for g in answers] == [DONE] * 300
    assert [g.position for g in driver.get_answers(*operations)] == [g.position for g in answers]
    records = list(rows(RECORD, driver.records[1]))
    assert len(records) == 299
    assert sum(driver.book.balances) == 29 * 10**6 + sum(o.amount for o in set(operations))


def test_a_key_with_another_amount_inside_a_large_batch_is_refused() -> None:
    driver = driver_with(FEW_OWNERS)
    operations = credits_of(300)
    operations[250] = operations[3]._replace(amount=10**5)
    outcomes = driver.ask(*operations)
    assert outcomes[250] == CoreOutcome.KEY_REUSED
    assert [o for n, o in enumerate(outcomes) if n != 250] == [DONE] * 299
    again = driver.ask(*operations)
    assert again == outcomes
    late = driver.ask(*(o._replace(amount=o.amount + 1) for o in operations))
    assert set(late) == {CoreOutcome.KEY_REUSED}


def test_each_answer_of_a_run_can_be_looked_up_and_outlives_a_restart() -> None:
    driver = driver_with(FEW_OWNERS)
    operations = [
        o._replace(verb=1, amount=5 if n % 7 else 10**9) for n, o in enumerate(credits_of(300))
    ]
    answers = driver.get_answers(*operations)
    assert {g.outcome for g in answers} == {DONE, SHORT}
    again = Book()
    for records in driver.records:
        again.replay(records)
    for operation, answer in zip(operations, answers, strict=True):
        key = operation.transfer_id + operation.version.to_bytes(4)
        assert driver.book.answer(key) == again.answer(key) == answer


def test_a_request_sees_the_large_request_before_it_in_the_same_batch() -> None:
    driver = driver_with(FEW_OWNERS)
    draft, packed = BookDraft(driver.book), pack_operations(credits_of(100))
    answers, _ = judge(draft, packed)
    assert judge(draft, packed) == (answers, b"")
    other = judge(draft, pack_operations([o._replace(amount=10**7) for o in credits_of(100)]))
    assert other == (ANSWER.pack(CoreOutcome.KEY_REUSED, 0) * 100, b"")


def test_an_undo_leaves_a_tombstone_for_a_later_operation_of_a_large_batch() -> None:
    driver = driver_with([ANN, BOB])
    operations = [credit(100 + n, 1, BOB) for n in range(100)]
    operations[20], operations[60] = refund(777, 5, expect_done=False), debit(777, 5)
    operations[30], operations[70] = debit(778, 5), refund(778, 5)
    outcomes = driver.ask(*operations)
    assert [outcomes[index] for index in (20, 60, 30, 70)] == [
        *(CoreOutcome.TOMBSTONE, CoreOutcome.UNDONE),
        *(DONE, DONE),
    ]
    assert driver.book.balance(ANN) == 10**6


def test_an_account_that_a_large_batch_opens_is_used_in_it() -> None:
    driver = driver_with(FEW_OWNERS)
    new = account(1, 5, 99_999)
    operations = credits_of(100)
    operations[10], operations[50], operations[90] = (
        credit(1, 70, new, 5),
        debit(2, 30, new, 5),
        debit(3, 41, new, 5),
    )
    operations[5] = debit(4, 1, new, 5)
    outcomes = driver.ask(*operations)
    assert [outcomes[index] for index in (5, 10, 50, 90)] == [
        *(CoreOutcome.SOURCE_ACCOUNT_NOT_FOUND, DONE, DONE, SHORT),
    ]
    assert driver.book.balance(new) == 40


@pytest.mark.parametrize("edge", [2**63, 2**64, MAX_AMOUNT])
@pytest.mark.parametrize("verb", [CoreVerb.CREDIT, CoreVerb.DEBIT])
def test_balances_at_the_edges_are_exact_and_never_exceeded(edge: int, verb: CoreVerb) -> None:
    driver = driver_with(FEW_OWNERS)
    driver.ask(credit(900, edge - 3), debit(901, 2, BOB), credit(902, MAX_AMOUNT, BOB))
    operations = credits_of(ROWS_PER_CALL * 2 + 9)
    operations[40:46] = [CoreOperation(tid(950 + n), 0, verb, ANN, 1) for n in range(6)]
    operations[60] = debit(960, MAX_AMOUNT, BOB)
    operations[61] = credit(961, MAX_AMOUNT, BOB)
    operations[62] = credit(962, 1, BOB)
    outcomes = driver.ask(*operations)
    assert outcomes[60:63] == [DONE, DONE, CoreOutcome.BALANCE_OVERFLOW]
    over = CoreOutcome.BALANCE_OVERFLOW
    wrong = [over] * 3 if edge == MAX_AMOUNT and verb is CoreVerb.CREDIT else [DONE] * 3
    assert outcomes[40:46] == [DONE] * 3 + wrong
    again = Book()
    for records in driver.records:
        again.replay(records)
    again.recount()
    assert digest(again) == digest(driver.book)


def test_an_account_frozen_between_two_requests_of_one_batch_is_frozen(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running_core(RealDisk(tmp_path)) as core:
            await get_answers(core, *(credit(1 + n, 100, o) for n, o in enumerate([ANN, BOB])))
            first = [debit(100 + n, 1, ANN if n % 2 else BOB) for n in range(60)]
            second = [debit(200 + n, 1, ANN if n % 2 else BOB) for n in range(60)]
            replies = [ask(core, *first)]
            frozen = core.submit(FrameKind.SET_STATUS, STATUS.pack(BOB, AccountStatus.FROZEN))
            replies.append(ask(core, *second))
            await asyncio.gather(*replies, frozen)
            assert len(core.marks.positions) == 3, "genesis, and one frame for all"
            assert {g.outcome for g in read_answers(replies[0].result(), 60)} == {DONE}
            outcomes = [g.outcome for g in read_answers(replies[1].result(), 60)]
            assert outcomes == [CoreOutcome.ACCOUNT_FROZEN, DONE] * 30
            assert (core.book.balance(ANN), core.book.balance(BOB)) == (40, 70)
            state = digest(core.book)
        async with running_core(RealDisk(tmp_path)) as core:
            assert digest(core.book) == state
            assert [g.outcome for g in await get_answers(core, *second)] == outcomes

    asyncio.run(scene())


def test_a_floor_in_the_middle_of_a_run_retires_only_what_is_below(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running_core(RealDisk(tmp_path)) as core:
            await get_answers(core, *OPENING_CREDITS)
            operations = credits_of(200)
            answers = await get_answers(core, *operations)
            await core.submit(FrameKind.RETIRE, tid(10_000 + 70))
            assert len(core.book.memory) == 130
            again = await get_answers(core, *operations)
            assert {g.outcome for g in again[:70]} == {CoreOutcome.RETIRED}
            assert again[70:] == answers[70:]
            await core.submit(FrameKind.SNAPSHOT, b"")
            await get_answers(core, *credits_of(10, 20_000))
            assert await get_answers(core, *operations) == again
            await core.submit(FrameKind.RETIRE, tid(10_000 + 75))
            again = await get_answers(core, *operations)
            assert {g.outcome for g in again[:75]} == {CoreOutcome.RETIRED}
            assert again[75:] == answers[75:]
            await core.submit(FrameKind.SNAPSHOT, b"")
            state = digest(core.book)
        async with running_core(RealDisk(tmp_path)) as core:
            assert digest(core.book) == state
            assert await get_answers(core, *operations) == again

    asyncio.run(scene())


def test_a_snapshot_between_large_batches_contains_all_that_was_answered(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running_core(RealDisk(tmp_path)) as core:
            await get_answers(core, *OPENING_CREDITS)
            large_batches = [credits_of(150, 10_000 + 1_000 * n) for n in range(6)]
            replies = []
            for number, large_batch in enumerate(large_batches):
                replies.append(ask(core, *large_batch))
                if number % 2:
                    replies.append(core.submit(FrameKind.SNAPSHOT, b""))
            await asyncio.gather(*replies)
            answers = [await get_answers(core, *b) for b in large_batches]
            state = digest(core.book)
        async with running_core(RealDisk(tmp_path)) as core:
            assert digest(core.book) == state
            assert [await get_answers(core, *b) for b in large_batches] == answers

    asyncio.run(scene())


@pytest.mark.parametrize("call", ["append", "fdatasync"])
def test_a_large_batch_on_a_full_disk_leaves_nothing_in_memory(tmp_path: Path, call: str) -> None:
    async def scene() -> None:
        disk = CountingDisk(RealDisk(tmp_path))
        core = await open_core(disk, UUID_A, TEST_LIMITS)
        commits = asyncio.ensure_future(core.run())
        await get_answers(core, *OPENING_CREDITS)
        state = digest(core.book)
        disk.failure = (call, errno.ENOSPC)
        operations = credits_of(300)
        with pytest.raises(CoreStopped):
            await ask(core, *operations)
        with pytest.raises(OSError, match="planted"):
            await commits
        assert digest(core.book) == state
        disk.unlock()
        async with running_core(RealDisk(tmp_path)) as again:
            assert {g.outcome for g in await get_answers(again, *operations)} == {DONE}
            amounts = sum(o.amount for o in operations)
            assert sum(again.book.totals.values()) == 2_900 + amounts, "each was done once"

    asyncio.run(scene())
