"""The rules by which the core moves money, one test for each."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trading_core.scenes import (
    ANN,
    BOB,
    BookDriver,
    batches,
    credit,
    debit,
    digest,
    refund,
    tid,
)
from tidegate.core.money import MAX_AMOUNT
from tidegate.core.wire import (
    ANSWER,
    OPERATION,
    VOID,
    AccountStatus,
    CoreOperation,
    CoreOutcome,
    account,
    pack_operations,
)
from tidegate.trading_core.book import Book, BookDraft, LogInconsistent, group_totals
from tidegate.trading_core.judge import judge

DONE, EMPTY = CoreOutcome.DONE, CoreOutcome.EMPTY


def test_a_credit_opens_the_account_and_a_debit_takes_from_it() -> None:
    driver = BookDriver()
    assert driver.ask(credit(1, 100), debit(2, 30)) == [DONE, DONE]
    assert driver.book.balance(ANN) == 70
    assert driver.book.status(ANN) == AccountStatus.ACTIVE


@pytest.mark.parametrize("amount", [0, MAX_AMOUNT + 1, 2**128 - 1])
def test_an_amount_out_of_range_is_refused(amount: int) -> None:
    driver = BookDriver()
    driver.ask(credit(1, 100))
    assert driver.ask(debit(2, amount), credit(3, amount)) == [CoreOutcome.INVALID_AMOUNT] * 2
    assert driver.book.balance(ANN) == 100


def test_the_greatest_amount_is_accepted() -> None:
    driver = BookDriver()
    assert driver.ask(credit(1, MAX_AMOUNT), debit(2, MAX_AMOUNT)) == [DONE, DONE]


def test_a_debit_of_an_unknown_account_is_refused_and_does_not_open_it() -> None:
    driver = BookDriver()
    assert driver.ask(debit(1, 5), debit(2, 5)) == [CoreOutcome.SOURCE_ACCOUNT_NOT_FOUND] * 2
    assert driver.book.status(ANN) == AccountStatus.ABSENT


def test_a_frozen_account_receives_but_does_not_give() -> None:
    driver = BookDriver()
    driver.ask(credit(1, 100))
    driver.set_status(ANN, AccountStatus.FROZEN)
    assert driver.ask(debit(2, 5), credit(3, 5)) == [CoreOutcome.ACCOUNT_FROZEN, DONE]


def test_a_disabled_account_neither_receives_nor_gives() -> None:
    driver = BookDriver()
    driver.set_status(ANN, AccountStatus.DISABLED)
    assert driver.ask(debit(2, 5), credit(3, 5)) == [CoreOutcome.ACCOUNT_DISABLED] * 2


@pytest.mark.parametrize("status", [AccountStatus.FROZEN, AccountStatus.DISABLED])
def test_a_refund_is_not_refused_for_the_status_of_the_account(status: AccountStatus) -> None:
    driver = BookDriver()
    driver.ask(credit(1, 100), debit(2, 40))
    driver.set_status(ANN, status)
    assert driver.ask(refund(2, 40)) == [DONE]
    assert driver.book.balance(ANN) == 100


def test_a_balance_never_exceeds_the_maximum() -> None:
    driver = BookDriver()
    driver.ask(credit(1, MAX_AMOUNT))
    assert driver.ask(credit(2, 1)) == [CoreOutcome.BALANCE_OVERFLOW]
    driver.ask(debit(3, 10), credit(4, 10))
    assert driver.ask(refund(3, 10)) == [CoreOutcome.BALANCE_OVERFLOW]
    assert driver.ask(debit(5, 10), refund(3, 10, version=2)) == [DONE, DONE]


def test_the_same_key_gets_the_same_answer_for_ever() -> None:
    driver = BookDriver()
    first = driver.get_answers(credit(1, 100), debit(2, 500))
    driver.ask(credit(3, 1000))
    assert driver.get_answers(credit(1, 100), debit(2, 500)) == first
    assert first[1].outcome is CoreOutcome.INSUFFICIENT_BALANCE  # Also after the top-up.
    assert driver.book.balance(ANN) == 1100


@pytest.mark.parametrize(
    "other",
    [
        debit(1, 100),
        credit(1, 101),
        credit(1, 100, BOB),
        credit(1, 100, account(1, 6, 1001)),
        credit(1, 100, account(2, 5, 1001)),
    ],
)
def test_a_key_reused_for_another_operation_changes_nothing(
    other: CoreOperation,
) -> None:
    driver = BookDriver()
    first = driver.get_answers(credit(1, 100), credit(9, 1, BOB))
    before = digest(driver.book)
    assert driver.ask(other) == [CoreOutcome.KEY_REUSED]
    assert digest(driver.book) == before
    assert driver.get_answers(credit(1, 100)) == first[:1]


def test_a_refund_key_is_also_bound_to_what_it_undoes() -> None:
    driver = BookDriver()
    driver.ask(credit(1, 100), debit(2, 10), refund(2, 10, version=5))
    assert driver.ask(refund(2, 10, undoes=3, version=5)) == [CoreOutcome.KEY_REUSED]


def test_expect_done_may_differ_when_a_refund_is_repeated() -> None:
    driver = BookDriver()
    driver.ask(credit(1, 100), debit(2, 10))
    first = driver.get_answers(refund(2, 10, expect_done=False))
    assert driver.get_answers(refund(2, 10, expect_done=True)) == first


def test_versions_of_one_transfer_are_different_operations() -> None:
    driver = BookDriver()
    assert driver.ask(credit(1, 5), credit(1, 5, version=1)) == [DONE, DONE]
    assert driver.book.balance(ANN) == 10


@pytest.mark.parametrize("expect_done", [True, False])
def test_a_done_operation_is_undone_once(expect_done: bool) -> None:
    driver = BookDriver()
    driver.ask(credit(1, 100), debit(2, 40))
    undo = [refund(2, 40, version=v, expect_done=expect_done) for v in (1, 2, 3)]
    assert driver.ask(undo[0], undo[1]) == [DONE, EMPTY]
    assert driver.ask(*undo) == [DONE, EMPTY, EMPTY]
    assert driver.book.balance(ANN) == 100


def test_an_expected_undo_of_an_unknown_operation_stores_nothing() -> None:
    driver = BookDriver()
    driver.ask(credit(1, 100))
    before = digest(driver.book)
    assert driver.ask(refund(2, 40)) == [CoreOutcome.UNDO_UNFOUNDED]
    assert digest(driver.book) == before
    assert driver.ask(debit(2, 40)) == [DONE]


def test_an_expected_undo_of_a_refused_operation_stores_nothing() -> None:
    driver = BookDriver()
    driver.ask(credit(1, 100), debit(2, 400))
    before = digest(driver.book)
    assert driver.ask(refund(2, 400)) == [CoreOutcome.UNDO_UNFOUNDED]
    assert digest(driver.book) == before


def test_an_undo_of_a_refused_operation_is_done_without_effect() -> None:
    driver = BookDriver()
    driver.ask(credit(1, 100), debit(2, 400))
    assert driver.ask(refund(2, 400, expect_done=False)) == [EMPTY]
    assert driver.book.balance(ANN) == 100


def test_a_tombstone_refuses_the_late_original() -> None:
    driver = BookDriver()
    driver.ask(credit(1, 100))
    assert driver.ask(refund(2, 40, expect_done=False)) == [CoreOutcome.TOMBSTONE]
    assert driver.ask(debit(2, 40), debit(2, 40)) == [CoreOutcome.UNDONE] * 2
    assert driver.ask(debit(2, 41)) == [CoreOutcome.KEY_REUSED]
    assert driver.ask(refund(2, 40, version=2, expect_done=False)) == [EMPTY]
    assert driver.ask(refund(2, 40, version=3)) == [CoreOutcome.UNDO_UNFOUNDED]
    assert driver.book.balance(ANN) == 100


def test_a_tombstone_for_an_account_that_does_not_exist() -> None:
    driver = BookDriver()
    assert driver.ask(refund(2, 40, expect_done=False), debit(2, 40)) == [
        CoreOutcome.TOMBSTONE,
        CoreOutcome.UNDONE,
    ]
    assert driver.book.status(ANN) == AccountStatus.ABSENT


@pytest.mark.parametrize("expect_done", [True, False])
def test_an_undo_must_match_the_operation_that_it_undoes(expect_done: bool) -> None:
    driver = BookDriver()
    driver.ask(credit(1, 100), debit(2, 40), credit(7, 1, BOB))
    right = refund(2, 40, expect_done=expect_done)
    before = digest(driver.book)
    for wrong in (
        right._replace(amount=39),
        right._replace(account=BOB),
        right._replace(account=account(1, 6, 1001)),
        refund(1, 100, expect_done=expect_done),  # A credit cannot be undone.
    ):
        assert driver.ask(wrong) == [CoreOutcome.KEY_REUSED]
    assert digest(driver.book) == before
    assert driver.ask(right) == [DONE]


@pytest.mark.parametrize(
    "wrong",
    [
        credit(1, 5)._replace(verb=4),
        credit(1, 5)._replace(verb=0),
        credit(1, 5)._replace(undoes=1),
        debit(1, 5)._replace(undoes=1),
        credit(1, 5, account(9, 1, 1)),
        debit(1, 5, account(0, 1, 1)),
        refund(1, 5, undoes=1, version=1),
        refund(1, 5)._replace(account=account(7, 1, 1)),
    ],
)
def test_a_malformed_operation_is_not_stored(wrong: CoreOperation) -> None:
    driver = BookDriver()
    before = digest(driver.book)
    assert driver.ask(wrong) == [CoreOutcome.MALFORMED]
    assert digest(driver.book) == before


def test_each_operation_sees_those_before_it_in_its_batch() -> None:
    driver = BookDriver()
    outcomes = driver.ask(
        debit(1, 5),
        credit(2, 10),
        debit(3, 6),
        debit(4, 6),
        debit(5, 4),
        refund(3, 6),
        debit(6, 6),
        credit(2, 10),
        debit(3, 6),
    )
    short = CoreOutcome.INSUFFICIENT_BALANCE
    assert outcomes == [
        CoreOutcome.SOURCE_ACCOUNT_NOT_FOUND, DONE, DONE, short, DONE, DONE, DONE, DONE, DONE,
    ]  # fmt: skip
    assert driver.book.balance(ANN) == 0


def test_a_duplicate_in_one_batch_is_the_same_operation() -> None:
    driver = BookDriver()
    first, second = driver.get_answers(credit(1, 10), credit(1, 10))
    assert first == second
    assert driver.book.balance(ANN) == 10
    assert driver.book.position == 1


def test_nothing_changes_until_the_draft_is_applied() -> None:
    from tidegate.trading_core.judge import judge

    driver = BookDriver()
    driver.ask(credit(1, 10))
    before = digest(driver.book)
    judge(BookDraft(driver.book), pack_operations([debit(2, 5), credit(3, 9, BOB)]))
    assert digest(driver.book) == before


def test_replay_of_the_records_gives_the_same_state() -> None:
    driver = BookDriver()
    for batch in batches(20):
        driver.ask(*batch)
    again = Book()
    for records in driver.records:
        again.replay(records)
    again.recount()
    assert digest(again) == digest(driver.book)
    assert dict(group_totals(again)) == again.totals


def test_replay_refuses_records_that_do_not_fit() -> None:
    driver = BookDriver()
    driver.ask(credit(1, 10))
    driver.ask(credit(2, 10))
    with pytest.raises(LogInconsistent):
        Book().replay(driver.records[1])


@pytest.mark.parametrize("lost", [credit(2, 5), debit(2, 5)])
@pytest.mark.parametrize("later", [credit(3, 1), debit(3, 1)])
def test_replay_refuses_a_plain_move_after_a_missing_one(
    lost: CoreOperation, later: CoreOperation
) -> None:
    driver, again = BookDriver(), Book()
    for operation in (credit(1, 10), lost, later):
        driver.ask(operation)
    again.replay(driver.records[0])
    with pytest.raises(LogInconsistent, match="record 2 does not fit"):
        again.replay(driver.records[2])


def test_replay_refuses_an_undo_of_an_unknown_operation() -> None:
    driver = BookDriver()
    driver.ask(credit(1, 10), debit(2, 10))
    driver.ask(refund(2, 10))
    with pytest.raises(LogInconsistent):
        Book().replay(driver.records[1])


_plain = st.builds(
    CoreOperation,
    st.integers(1, 6).map(lambda n: n.to_bytes(16)),
    st.integers(0, 3),
    st.integers(1, 2),
    st.sampled_from([ANN, BOB]),
    st.integers(1, 3),
    st.just(0),
    st.sampled_from([False]),
)
_undo = st.builds(
    lambda plain, undoes, expect: plain._replace(verb=3, undoes=undoes, expect_done=expect),
    _plain,
    st.integers(0, 3),
    st.booleans(),
)
operations = _plain | _undo


@given(st.lists(st.lists(operations, max_size=12), max_size=8))
def test_batching_makes_no_difference(split: list[list[CoreOperation]]) -> None:
    """Operations are judged the same in any batches as one by one."""
    batched, single = BookDriver(), BookDriver()
    answers = [batched.get_answers(*batch) for batch in split]
    assert [g for batch in answers for g in batch] == [
        single.get_answers(operation)[0] for batch in split for operation in batch
    ]
    assert digest(batched.book) == digest(single.book)
    assert all(balance >= 0 for balance in batched.book.balances)


@given(st.lists(operations, max_size=40))
def test_balances_are_the_sums_of_the_records(batch: list[CoreOperation]) -> None:
    """Each key has an effect at most once, and the sum of the effects is the sum of balances."""
    driver = BookDriver()
    driver.ask(*batch)
    driver.ask(*batch)
    events = [r for records in driver.records for r in _deltas(records)]
    assert len({key for key, _ in events}) == len(events)
    assert sum(delta for _, delta in events) == sum(driver.book.balances)
    assert sum(driver.book.totals.values()) == sum(driver.book.balances)


def _deltas(records: bytes) -> list[tuple[bytes, int]]:
    from tidegate.core.wire import RECORD, rows

    return [(row[0], int.from_bytes(row[7], signed=True)) for row in rows(RECORD, records)]


@pytest.mark.parametrize(("verb", "undoes"), [(0, 0), (4, 0), (255, 0), (1, 3), (2, 3), (3, 1)])
def test_a_void_of_an_invalid_operation_is_malformed_and_not_stored(verb: int, undoes: int) -> None:
    """If it were stored, it would become an event with a verb that no reader knows."""
    driver = BookDriver()
    packed = OPERATION.pack(tid(1) + (1).to_bytes(4), verb, VOID, undoes, ANN, (5).to_bytes(16))
    draft = BookDraft(driver.book)
    answers, records = judge(draft, packed)
    assert (answers, records) == (ANSWER.pack(CoreOutcome.MALFORMED, 0), b"")
    assert not draft.memory
