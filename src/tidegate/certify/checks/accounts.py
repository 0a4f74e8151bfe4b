"""Accounts that are frozen, closed or not there, and amounts that are none."""

from msgspec.structs import replace

from tidegate.certify.checks.check import Check
from tidegate.certify.system_under_test import CanDisable, CanFreeze, CanQuery
from tidegate.certify.trial import NotTried, Trial
from tidegate.core.answers import Done, Rejected, Unknown
from tidegate.core.flow import Verb


async def frozen(trial: Trial) -> None:
    if not isinstance(trial.bench, CanFreeze):
        raise NotTried("the bench has no freeze(owner)")
    before = trial.debit(40)
    undo = trial.undo(before)
    await trial.done(before)
    await trial.bench.freeze(trial.owner)
    trial.tell("frozen")
    await trial.rejected(trial.debit(1))
    await trial.done(undo)
    await trial.has(100)


async def disabled(trial: Trial) -> None:
    if not isinstance(trial.bench, CanDisable):
        raise NotTried("the bench has no disable(owner)")
    before = trial.debit(40)
    undo = trial.undo(before)
    await trial.done(before)
    await trial.bench.disable(trial.owner)
    trial.tell("disabled")
    await trial.rejected(trial.debit(1))
    await trial.rejected(trial.credit(1))
    await trial.done(undo)
    await trial.has(100)


async def absent(trial: Trial) -> None:
    question = trial.debit(1, owner=trial.other)
    refused = await trial.rejected(question)
    await trial.fund(50, trial.other)
    await trial.same(question, refused)
    await trial.has(50, trial.other)


async def other_asset(trial: Trial) -> None:
    question = trial.debit(40)
    foreign = replace(question, asset_id=question.asset_id + 1)
    if isinstance(await trial.one(foreign), Done):
        trial.broken("nothing is taken of an asset of which the owner has nothing")
    await trial.has(100)


async def amounts(trial: Trial) -> None:
    for amount in (0, 2**127):
        for question in (trial.debit(amount), trial.credit(amount)):
            if isinstance(await trial.one(question), Done):
                trial.broken(f"{amount} is not an amount: Rejected, or Unknown")
            await trial.has(100)


async def senseless(trial: Trial) -> None:
    """What the engine never asks of an account, so that nobody has thought of it."""
    await trial.one(trial.question(Verb.CHECK, 40))
    await trial.has(100)
    for verb in (Verb.REFUND, Verb.RELEASE, Verb.CAPTURE):
        if isinstance(await trial.one(trial.question(verb, 40)), Done):
            trial.broken("an undo that names nothing is not Done")
        await trial.has(100)


async def query(trial: Trial) -> None:
    bench = trial.bench
    if not isinstance(bench, CanQuery):
        raise NotTried("the bench has no query(question)")
    done, refused = trial.debit(40), trial.debit(400)
    if await bench.query(done) is not None:
        trial.broken("under a key never seen there is nothing: None, and never a «no»")
    await trial.done(done)
    await trial.rejected(refused)
    if not isinstance(await bench.query(done), Done):
        trial.broken("a query finds the Done that was given")
    if not isinstance(await bench.query(refused), Rejected | Unknown):
        trial.broken("a query finds the Rejected that was given, or Unknown")
    await bench.query(replace(done, version=1))
    await trial.has(60)


ACCOUNTS = (
    Check(
        "frozen",
        "A frozen account refuses debits and takes refunds",
        "money that is on its way back would have nowhere to go",
        "do not look at the status for a refund: the money is its owner's already",
        frozen,
    ),
    Check(
        "disabled",
        "A disabled account refuses everything but refunds",
        "money that is on its way back would have nowhere to go",
        "do not look at the status for a refund: the money is its owner's already",
        disabled,
    ),
    Check(
        "absent",
        "From an account that is not there nothing is taken, and that stays so",
        "a debit that was refused would succeed once the account is opened, after its transfer"
        " has failed",
        "store the refusal under its key though there is no account to store it with",
        absent,
    ),
    Check(
        "other-asset",
        "Money of one asset does not pay for another",
        "a customer would pay in what is worth little and be credited what is worth much",
        "a balance belongs to an owner, a book and an asset: look for all three",
        other_asset,
    ),
    Check(
        "amounts",
        "Zero, and what does not fit 127 bits, is not an amount and moves nothing",
        "a transfer of nothing would count as paid; a balance would overflow",
        "refuse what is not 0 < amount < 2**127",
        amounts,
    ),
    Check(
        "senseless",
        "A question that makes no sense moves nothing",
        "an else-branch would pay where nothing was asked for",
        "name every verb that you know; for all others answer Unknown(…, Alarm.PAGE)",
        senseless,
    ),
    Check(
        "query",
        "A question can be looked up by its key, and nothing is not a «no»",
        "«not found» of a question that is still on its way would be taken for a refusal",
        "answer a look-up from the stored operations; None where there is none",
        query,
    ),
)
