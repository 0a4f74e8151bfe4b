"""Checks of undos: before or after the original, repeated, concurrent or unfounded."""

from tidegate.certify.checks.check import Check
from tidegate.certify.trial import Trial
from tidegate.core.answers import Alarm, Rejected


async def undo_twice(trial: Trial) -> None:
    question = trial.debit(40)
    await trial.assert_done(question)
    for version in (1, 2, 3, 1):
        await trial.assert_done(trial.undo(question, version))
        await trial.assert_balance(100)


async def racing_undos(trial: Trial) -> None:
    question = trial.debit(40)
    await trial.assert_done(question)
    undos = [trial.undo(question, version) for version in range(1, 9)]
    answers = await trial.race(*undos)
    if any(isinstance(answer, Rejected) for answer in answers):
        trial.fail("every undo of a done operation is Done, also a repeated one")
    for undo in undos:
        await trial.assert_done(undo)
    await trial.assert_balance(100)


async def tombstone(trial: Trial) -> None:
    question = trial.debit(40)
    await trial.assert_done(trial.undo(question, expect_done=False))
    await trial.assert_balance(100)
    await trial.assert_rejected(question)
    await trial.assert_balance(100)


async def late_original(trial: Trial) -> None:
    """The same, with money received and the undo repeated before the original arrives."""
    question = trial.debit(40)
    undo = trial.undo(question, expect_done=False)
    await trial.assert_done(undo)
    await trial.fund(1000)
    await trial.assert_done(undo)
    refused = await trial.assert_rejected(question)
    await trial.assert_done(trial.undo(question, 2, expect_done=False))
    await trial.assert_same(question, refused)
    await trial.assert_balance(1100)


async def racing_original(trial: Trial) -> None:
    for _ in range(4):
        question = trial.debit(40)
        undo = trial.undo(question, expect_done=False)
        await trial.race(question, undo)
        await trial.ask_one(question)
        await trial.assert_done(undo)
        await trial.assert_balance(100)


async def unfounded_undo(trial: Trial) -> None:
    unseen, refused = trial.debit(40), trial.debit(999)
    before = await trial.assert_rejected(refused)
    for question in (unseen, refused):
        await trial.assert_unknown(trial.undo(question), Alarm.HALT)
        await trial.assert_balance(100)
    await trial.assert_done(unseen)
    await trial.assert_same(refused, before)
    await trial.assert_balance(60)


async def undo_of_a_refusal(trial: Trial) -> None:
    question = trial.debit(101)
    await trial.assert_rejected(question)
    await trial.assert_done(trial.undo(question, expect_done=False))
    await trial.assert_balance(100)
    await trial.fund(1000)
    await trial.assert_rejected(question)
    await trial.assert_balance(1100)


UNDOS = (
    Check(
        "undo-twice",
        "A repeated undo, under its key or another, is Done and moves nothing more",
        "the owner would get the money back twice",
        "before you give money back, check whether this key was undone; if so, answer Done",
        undo_twice,
    ),
    Check(
        "racing-undos",
        "Concurrent undos of one key give the money back once",
        "two workers would each refund the same debit",
        "lock the account, or use a unique index on the undone key",
        racing_undos,
    ),
    Check(
        "tombstone",
        "An undo before its original leaves a tombstone, and the late original is refused",
        "the debit would arrive after its transfer was rolled back, and would never be undone",
        "an undo of an unknown key stores a refusal (UNDONE) under that key, and is Done",
        tombstone,
    ),
    Check(
        "late-original",
        "A tombstone is kept, whatever happens before the original arrives",
        "a packet that was delayed long enough would take money for a transfer that has ended",
        "keep tombstones as long as you keep operations",
        late_original,
    ),
    Check(
        "racing-original",
        "An original and its undo at the same time have no effect in the end",
        "the undo would find no debit, the debit no tombstone, and the money would be lost",
        "judge both under one lock on the account, so that one of them is first",
        racing_original,
    ),
    Check(
        "unfounded-undo",
        "An undo that expects a Done which is not stored is Unknown, and stores nothing",
        "one of the two books is wrong: to pay money back would create money",
        "with expect_done and an unknown or refused original, answer"
        ' Unknown("UNDO_UNFOUNDED", Alarm.HALT)',
        unfounded_undo,
    ),
    Check(
        "undo-of-a-refusal",
        "An undo of a refused question is Done and moves nothing",
        "the owner would get money that was never taken",
        "give back the amount that the original moved: nothing if it was refused",
        undo_of_a_refusal,
    ),
)
