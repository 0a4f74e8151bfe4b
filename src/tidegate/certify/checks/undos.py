"""An undo names the key that it undoes, and comes before it, after it, twice, or for nothing."""

from tidegate.certify.checks.check import Check
from tidegate.certify.trial import Trial
from tidegate.core.answers import Alarm, Rejected


async def undo_twice(trial: Trial) -> None:
    question = trial.debit(40)
    await trial.done(question)
    for version in (1, 2, 3, 1):
        await trial.done(trial.undo(question, version))
        await trial.has(100)


async def racing_undos(trial: Trial) -> None:
    question = trial.debit(40)
    await trial.done(question)
    undos = [trial.undo(question, version) for version in range(1, 9)]
    answers = await trial.race(*undos)
    if any(isinstance(answer, Rejected) for answer in answers):
        trial.broken("an undo of what is done is Done, the second one too")
    for undo in undos:
        await trial.done(undo)
    await trial.has(100)


async def tombstone(trial: Trial) -> None:
    question = trial.debit(40)
    await trial.done(trial.undo(question, expect_done=False))
    await trial.has(100)
    await trial.rejected(question)
    await trial.has(100)


async def late_original(trial: Trial) -> None:
    """The same, after time has passed and the undo has been repeated."""
    question = trial.debit(40)
    undo = trial.undo(question, expect_done=False)
    await trial.done(undo)
    await trial.fund(1000)
    await trial.done(undo)
    refused = await trial.rejected(question)
    await trial.done(trial.undo(question, 2, expect_done=False))
    await trial.same(question, refused)
    await trial.has(1100)


async def racing_original(trial: Trial) -> None:
    for _ in range(4):
        question = trial.debit(40)
        undo = trial.undo(question, expect_done=False)
        await trial.race(question, undo)
        await trial.one(question)
        await trial.done(undo)
        await trial.has(100)


async def unfounded_undo(trial: Trial) -> None:
    unseen, refused = trial.debit(40), trial.debit(999)
    before = await trial.rejected(refused)
    for question in (unseen, refused):
        await trial.unknown(trial.undo(question), Alarm.HALT)
        await trial.has(100)
    await trial.done(unseen)
    await trial.same(refused, before)
    await trial.has(60)


async def undo_of_a_refusal(trial: Trial) -> None:
    question = trial.debit(101)
    await trial.rejected(question)
    await trial.done(trial.undo(question, expect_done=False))
    await trial.has(100)
    await trial.fund(1000)
    await trial.rejected(question)
    await trial.has(1100)


UNDOS = (
    Check(
        "undo-twice",
        "An undo repeated, under its key or another, is Done and moves nothing more",
        "the owner would get the money back twice",
        "before you give money back, look whether this key has been undone; then answer Done",
        undo_twice,
    ),
    Check(
        "racing-undos",
        "Undos of one key that race give the money back once",
        "two workers would each refund the same debit",
        "lock the account, or let a unique index over the undone key decide",
        racing_undos,
    ),
    Check(
        "tombstone",
        "An undo before its original leaves a tombstone, and the late original is refused",
        "the debit would arrive after its transfer has been rolled back, and stay",
        "an undo of a key never seen stores a refusal (UNDONE) under that key, and is Done",
        tombstone,
    ),
    Check(
        "late-original",
        "A tombstone stands, whatever happens in between",
        "a packet that was delayed for long enough would take money for a transfer that is over",
        "keep tombstones as long as you keep operations",
        late_original,
    ),
    Check(
        "racing-original",
        "An original and its undo that race leave nothing behind",
        "the undo would find nothing, the debit would find no tombstone, and the money be gone",
        "judge both under one lock on the account, so that one of them comes first",
        racing_original,
    ),
    Check(
        "unfounded-undo",
        "An undo of what we hold as done, and you have not, is Unknown, and nothing is stored",
        "one of the two books is wrong: to pay on it would make money out of nothing",
        'with expect_done, an unseen or refused original is Unknown("UNDO_UNFOUNDED", Alarm.HALT)',
        unfounded_undo,
    ),
    Check(
        "undo-of-a-refusal",
        "An undo of what was refused is Done and moves nothing",
        "the owner would be given money that was never taken",
        "give back what the original moved, which is nothing if it was refused",
        undo_of_a_refusal,
    ),
)
