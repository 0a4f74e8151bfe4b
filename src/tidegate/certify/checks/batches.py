"""Checks of batches and concurrent sessions: each question is judged by itself."""

from tidegate.certify.checks.check import Check
from tidegate.certify.system_under_test import AnswersInOrder
from tidegate.certify.trial import NotTried, Trial
from tidegate.core.answers import Done, Rejected, Unknown

BATCH_SIZE = 60


async def partial_refusal(trial: Trial) -> None:
    batch = [trial.debit(amount) for amount in (10, 999, 20, 998, 30)]
    answers = await trial.ask(*batch)
    for question, answer in zip(batch, answers, strict=True):
        if isinstance(answer, Rejected if question.amount < 100 else Done):
            trial.fail(f"in a batch, a debit of {question.amount} from 100 is judged by itself")
        await (trial.assert_done if question.amount < 100 else trial.assert_rejected)(question)
    await trial.assert_balance(40)


async def order_of_answers(trial: Trial) -> None:
    """Refusals have irregular indexes, so an answer at the wrong index is detected."""
    amounts = [1000 + index if index * index % 7 in (1, 4) else 1 for index in range(BATCH_SIZE)]
    batch = [trial.debit(amount) for amount in amounts]
    answers = await trial.ask(*batch)
    for question, answer in zip(batch, answers, strict=True):
        if not isinstance(answer, Unknown):
            await trial.assert_same(question, answer)
    await trial.assert_balance(100 - amounts.count(1))


async def in_order(trial: Trial) -> None:
    _needs_order(trial)
    batch = [trial.debit(amount) for amount in (60, 60, 30, 11, 10)]
    done = [isinstance(answer, Done) for answer in await trial.ask(*batch)]
    if done != [True, False, True, False, True]:
        trial.fail("with 100: 60 is Done, 60 Rejected, 30 Done, 11 Rejected, 10 Done")
    await trial.assert_balance(0)


async def through_a_batch(trial: Trial) -> None:
    _needs_order(trial)
    batch = [trial.debit(100), trial.credit(50), trial.debit(50)]
    if not all(isinstance(answer, Done) for answer in await trial.ask(*batch)):
        trial.fail("money credited in a batch can be debited in the same batch")
    await trial.assert_balance(0)


def _needs_order(trial: Trial) -> None:
    if not (isinstance(trial.bench, AnswersInOrder) and trial.bench.in_order):
        raise NotTried("the bench has no in_order = True: a batch may be done in any order")


async def overdraft(trial: Trial) -> None:
    debits = [trial.debit(15) for _ in range(12)]
    await trial.race(*debits)
    answers = [await trial.final_answer(debit) for debit in debits]
    done = sum(isinstance(answer, Done) for answer in answers)
    trial.record(f"{done} of 12 debits of 15 are Done")
    if done != 6:
        trial.fail("100 is enough for exactly 6 debits of 15")
    await trial.assert_balance(10)


async def many_sessions(trial: Trial) -> None:
    debits, credits_ = [trial.debit(7) for _ in range(20)], [trial.credit(3) for _ in range(20)]
    mixed = [question for pair in zip(debits, credits_, strict=True) for question in pair]
    await trial.race(*mixed)
    answers = [await trial.final_answer(question) for question in mixed]
    moved = sum(
        3 if index % 2 else -7 for index, answer in enumerate(answers) if isinstance(answer, Done)
    )
    if not all(isinstance(answer, Done) for answer in answers[1::2]):
        trial.fail("every credit is Done")
    if moved < -100:
        trial.fail("the account is not overdrawn")
    await trial.assert_balance(100 + moved)


BATCHES = (
    Check(
        "partial-refusal",
        "A refusal or success of one question in a batch does not decide the others",
        "one poor customer in a batch would fail the transfers of all others, or a transfer would"
        " count as paid although it was refused",
        "give each question its own answer; one failure must not roll back the batch",
        partial_refusal,
    ),
    Check(
        "order-of-answers",
        "Answers are returned in the order of the questions",
        "the refusal of one customer would be applied to another, whose money has moved already",
        "return each answer at the index of its question, whatever the order of execution",
        order_of_answers,
    ),
    Check(
        "in-order",
        "Each question of a batch sees the effects of those before it",
        "a batch would be judged on old balances",
        "judge the questions one after the other, each on the balance that the last one left",
        in_order,
    ),
    Check(
        "through-a-batch",
        "Money credited in a batch can be debited in the same batch",
        "a transfer would be refused although its money had arrived",
        "judge the questions one after the other, each on the balance that the last one left",
        through_a_batch,
    ),
    Check(
        "overdraft",
        "Concurrent debits never overdraw an account, and none is refused without need",
        "more money would be paid out than the account has",
        "read the balance under a lock, or subtract with a condition in one statement",
        overdraft,
    ),
    Check(
        "many-sessions",
        "After concurrent operations on one account, the balance matches the answers",
        "an update that overwrites another would create or lose its amount",
        "change a balance by adding in the database; never write back a value that was read before",
        many_sessions,
    ),
)
