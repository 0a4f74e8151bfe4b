"""Checks of frozen, disabled and missing accounts, and of amounts that are not valid."""

from collections.abc import Sequence

from msgspec.structs import replace

from tidegate.certify.checks.check import Check
from tidegate.certify.system_under_test import CanDisable, CanFreeze, CanQuery
from tidegate.certify.trial import NotTried, Trial
from tidegate.core.answers import Done, Rejected, Unknown
from tidegate.core.flow import Verb
from tidegate.core.transfer import Question


async def frozen(trial: Trial) -> None:
    if not isinstance(trial.bench, CanFreeze):
        raise NotTried("the bench has no freeze(owner)")
    undo = await _undo_of_a_debit(trial)
    await trial.bench.freeze(trial.owner)
    trial.record("frozen")
    await _refuses(trial, [trial.debit(1)], undo)


async def disabled(trial: Trial) -> None:
    if not isinstance(trial.bench, CanDisable):
        raise NotTried("the bench has no disable(owner)")
    undo = await _undo_of_a_debit(trial)
    await trial.bench.disable(trial.owner)
    trial.record("disabled")
    await _refuses(trial, [trial.debit(1), trial.credit(1)], undo)


async def _undo_of_a_debit(trial: Trial) -> Question:
    debit = trial.debit(40)
    undo = trial.undo(debit)
    await trial.assert_done(debit)
    return undo


async def _refuses(trial: Trial, questions: Sequence[Question], undo: Question) -> None:
    """The account refuses new operations. An undo must still be possible."""
    for question in questions:
        await trial.assert_rejected(question)
    await trial.assert_done(undo)
    await trial.assert_balance(100)


async def absent(trial: Trial) -> None:
    question = trial.debit(1, owner=trial.other)
    refused = await trial.assert_rejected(question)
    await trial.fund(50, trial.other)
    await trial.assert_same(question, refused)
    await trial.assert_balance(50, trial.other)


async def other_asset(trial: Trial) -> None:
    question = trial.debit(40)
    foreign = replace(question, asset_id=question.asset_id + 1)
    if isinstance(await trial.ask_one(foreign), Done):
        trial.fail("a debit of an asset that the owner does not have is not Done")
    await trial.assert_balance(100)


async def amounts(trial: Trial) -> None:
    for amount in (0, 2**127):
        for question in (trial.debit(amount), trial.credit(amount)):
            if isinstance(await trial.ask_one(question), Done):
                trial.fail(f"{amount} is not a valid amount: Rejected or Unknown")
            await trial.assert_balance(100)


async def senseless(trial: Trial) -> None:
    """Ask questions that the engine never asks of an account."""
    await trial.ask_one(trial.question(Verb.CHECK, 40))
    await trial.assert_balance(100)
    for verb in (Verb.REFUND, Verb.RELEASE, Verb.CAPTURE):
        if isinstance(await trial.ask_one(trial.question(verb, 40)), Done):
            trial.fail("an undo without an operation to undo is not Done")
        await trial.assert_balance(100)


async def query(trial: Trial) -> None:
    bench = trial.bench
    if not isinstance(bench, CanQuery):
        raise NotTried("the bench has no query(question)")
    done, refused = trial.debit(40), trial.debit(400)
    if await bench.query(done) is not None:
        trial.fail("a query of an unknown key returns None")
    await trial.assert_done(done)
    await trial.assert_rejected(refused)
    if not isinstance(await bench.query(done), Done):
        trial.fail("a query returns the Done that was answered")
    if not isinstance(await bench.query(refused), Rejected | Unknown):
        trial.fail("a query returns the Rejected that was answered, or Unknown")
    await bench.query(replace(done, version=1))
    await trial.assert_balance(60)


ACCOUNTS = (
    Check(
        "frozen",
        "A frozen account refuses debits and accepts refunds",
        "money that must be returned could not be returned",
        "do not check the status for a refund: the money already belongs to the owner",
        frozen,
    ),
    Check(
        "disabled",
        "A disabled account refuses everything except refunds",
        "money that must be returned could not be returned",
        "do not check the status for a refund: the money already belongs to the owner",
        disabled,
    ),
    Check(
        "absent",
        "A debit of an account that does not exist is refused, and stays refused",
        "the refused debit would succeed once the account is opened, after its transfer has failed",
        "store the refusal under its key, although there is no account to store it with",
        absent,
    ),
    Check(
        "other-asset",
        "Money of one asset does not pay for another asset",
        "a customer would pay in a cheap asset and be credited in an expensive one",
        "a balance belongs to an owner, a book and an asset: select it by all three",
        other_asset,
    ),
    Check(
        "amounts",
        "Zero and amounts of more than 127 bits are not valid and move nothing",
        "a transfer of nothing would count as paid, or a balance would overflow",
        "refuse an amount unless 0 < amount < 2**127",
        amounts,
    ),
    Check(
        "senseless",
        "A question that makes no sense moves nothing",
        "an else-branch would pay for a verb that the system does not support",
        "name every verb that you support; for all others answer Unknown(…, Alarm.PAGE)",
        senseless,
    ),
    Check(
        "query",
        "An answer can be queried by its key, and an unknown key is not a refusal",
        'the "not found" of a question that has not arrived yet would be taken for a refusal',
        "answer a query from the stored operations; return None if there is none",
        query,
    ),
)
