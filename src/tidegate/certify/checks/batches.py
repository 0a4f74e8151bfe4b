"""Everything is asked in batches, by many at once: no question pays for another."""

from tidegate.certify.checks.check import Check
from tidegate.certify.system_under_test import AnswersInOrder
from tidegate.certify.trial import NotTried, Trial
from tidegate.core.answers import Done, Rejected, Unknown

MANY = 60


async def partial_refusal(trial: Trial) -> None:
    batch = [trial.debit(amount) for amount in (10, 999, 20, 998, 30)]
    answers = await trial.ask(*batch)
    for question, answer in zip(batch, answers, strict=True):
        if isinstance(answer, Rejected if question.amount < 100 else Done):
            trial.broken(f"in a batch, {question.amount} of 100 is judged by itself")
        await (trial.done if question.amount < 100 else trial.rejected)(question)
    await trial.has(40)


async def order_of_answers(trial: Trial) -> None:
    """Refusals at irregular places: an answer that is out of its place is seen."""
    amounts = [1000 + turn if turn * turn % 7 in (1, 4) else 1 for turn in range(MANY)]
    batch = [trial.debit(amount) for amount in amounts]
    answers = await trial.ask(*batch)
    for question, answer in zip(batch, answers, strict=True):
        if not isinstance(answer, Unknown):
            await trial.same(question, answer)
    await trial.has(100 - amounts.count(1))


async def in_order(trial: Trial) -> None:
    _needs_order(trial)
    batch = [trial.debit(amount) for amount in (60, 60, 30, 11, 10)]
    done = [isinstance(answer, Done) for answer in await trial.ask(*batch)]
    if done != [True, False, True, False, True]:
        trial.broken("of 100: 60 yes, 60 no, 30 yes, 11 no, 10 yes")
    await trial.has(0)


async def through_a_batch(trial: Trial) -> None:
    _needs_order(trial)
    batch = [trial.debit(100), trial.credit(50), trial.debit(50)]
    if not all(isinstance(answer, Done) for answer in await trial.ask(*batch)):
        trial.broken("money that comes in a batch can leave in it")
    await trial.has(0)


def _needs_order(trial: Trial) -> None:
    if not (isinstance(trial.bench, AnswersInOrder) and trial.bench.in_order):
        raise NotTried("the bench does not say in_order = True: batches may be done in any order")


async def overdraft(trial: Trial) -> None:
    debits = [trial.debit(15) for _ in range(12)]
    await trial.race(*debits)
    answers = [await trial.final(debit) for debit in debits]
    done = sum(isinstance(answer, Done) for answer in answers)
    trial.tell(f"{done} of 12 debits of 15 are Done")
    if done != 6:
        trial.broken("100 is enough for exactly 6 debits of 15")
    await trial.has(10)


async def many_sessions(trial: Trial) -> None:
    debits, credits_ = [trial.debit(7) for _ in range(20)], [trial.credit(3) for _ in range(20)]
    mixed = [question for pair in zip(debits, credits_, strict=True) for question in pair]
    await trial.race(*mixed)
    answers = [await trial.final(question) for question in mixed]
    moved = sum(
        3 if turn % 2 else -7 for turn, answer in enumerate(answers) if isinstance(answer, Done)
    )
    if not all(isinstance(answer, Done) for answer in answers[1::2]):
        trial.broken("every credit is Done")
    if moved < -100:
        trial.broken("no more leaves an account than was in it")
    await trial.has(100 + moved)


BATCHES = (
    Check(
        "partial-refusal",
        "A refusal of one in a batch never refuses another, nor does a yes speak for all",
        "one poor customer in a batch would fail the transfers of all others, or a transfer count"
        " as paid that was not",
        "give each question its own answer; do not let one failure roll back the batch",
        partial_refusal,
    ),
    Check(
        "order-of-answers",
        "Answers come in the order of the questions",
        "one customer's «no» would be taken for another's, whose money is gone already",
        "put each answer in the place of its question, whatever order they were done in",
        order_of_answers,
    ),
    Check(
        "in-order",
        "Each question of a batch sees what the ones before it left",
        "a batch would be judged on balances that are no longer there",
        "judge one after the other, on the balance that the one before left",
        in_order,
    ),
    Check(
        "through-a-batch",
        "Money that comes in a batch can leave in it",
        "a transfer would be refused though its money had come",
        "judge one after the other, on the balance that the one before left",
        through_a_batch,
    ),
    Check(
        "overdraft",
        "Debits that race never overdraw an account, and none is refused without need",
        "money would be paid out that nobody has",
        "read the balance under a lock, or subtract with a condition in one statement",
        overdraft,
    ),
    Check(
        "many-sessions",
        "After many sessions on one account, the balance is what the answers say",
        "an update that overwrites another makes or loses its amount",
        "change balances by adding in the database, never by writing back what was read before",
        many_sessions,
    ),
)
