"""A batch gets the same answers as its questions judged one after the other."""

from collections.abc import Sequence
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.core.account import Account
from tidegate.core.flow import UNDO_VERBS, Verb
from tidegate.core.kind import Party
from tidegate.core.money import MAX_AMOUNT
from tidegate.core.request import MAX_OWNER
from tidegate.core.transfer import Question
from tidegate.systems.ledger.judge import (
    OUTSIDE,
    LedgerBalance,
    LedgerJudge,
    LedgerOperation,
    LedgerStatus,
    account_of,
)

OWNERS, BOOKS = (1, 2), ("FUNDING", OUTSIDE)
PLAIN = (Verb.DEBIT, Verb.CREDIT)
IDS = st.integers(1, 10**6) | st.integers(1, 12)
AMOUNTS = st.sampled_from((0, 1, 60, 100, MAX_AMOUNT - 50, MAX_AMOUNT, MAX_AMOUNT + 1))


@st.composite
def questions(draw: st.DrawFn) -> Question:
    verb = draw(st.sampled_from((*PLAIN, *PLAIN, *PLAIN, Verb.HOLD, Verb.REFUND, Verb.RELEASE)))
    owner = draw(st.sampled_from((*OWNERS, *OWNERS, 0, 3, MAX_OWNER + 1)))
    party = Party("ledger", draw(st.sampled_from(BOOKS)), owner)
    id_, version = UUID(int=draw(IDS)), draw(st.integers(0, 2))
    fee = draw(st.sampled_from((0, 0, 0, 5))) if verb is Verb.CREDIT else 0
    return Question(
        id_,
        version + (verb in UNDO_VERBS),
        verb,
        party,
        draw(st.sampled_from((3, 3, 9))),
        draw(AMOUNTS),
        undoes=version if verb in UNDO_VERBS else None,
        expect_done=draw(st.booleans()) if verb in UNDO_VERBS else False,
        void=draw(st.sampled_from((False, False, False, True))),
        fee=fee,
        fees=Party("ledger", "FEES", owner) if fee else None,
    )


BALANCES = st.builds(
    LedgerBalance,
    st.sampled_from((0, 100, MAX_AMOUNT - 60)),
    st.sampled_from((0, 50)),
    st.sampled_from(
        (*[str(LedgerStatus.ACTIVE)] * 3, str(LedgerStatus.FROZEN), str(LedgerStatus.DISABLED))
    ),
)
ALL = [
    Account(o, book, asset) for o in (*OWNERS, 0) for book in (*BOOKS, "FEES") for asset in (3, 9)
]
ACCOUNTS = st.fixed_dictionaries({}, optional=dict.fromkeys(ALL, BALANCES))


def operations_of(judgement: LedgerJudge) -> list[LedgerOperation]:
    return sorted(
        judgement.operations_written(), key=lambda o: (o.transfer_id.int, o.version, o.entry)
    )


FEW_QUESTIONS: st.SearchStrategy[list[Question]] = st.just([]) | st.lists(questions(), max_size=3)


@pytest.mark.slow
@settings(max_examples=1_000)
@given(ACCOUNTS, st.lists(questions(), max_size=12), FEW_QUESTIONS)
def test_a_batch_gets_the_same_answers_as_its_questions_in_turn(
    accounts: dict[Account, LedgerBalance], batch: Sequence[Question], earlier: Sequence[Question]
) -> None:
    before = LedgerJudge(dict(accounts), [])
    for question in earlier:
        before.judge(question, account_of(question))
    known = before.operations_written()
    in_turn, together = (LedgerJudge(dict(before.accounts), known) for _ in range(2))
    one_by_one = [in_turn.judge(question, account_of(question)) for question in batch]
    assert together.judge_all(batch, [account_of(q) for q in batch]) == one_by_one
    assert together.accounts == in_turn.accounts
    assert operations_of(together) == operations_of(in_turn)
