"""What dies, what is lost, and what must be found again afterwards."""

import asyncio
from collections.abc import Awaitable, Callable

from tidegate.certify.checks.check import Check
from tidegate.certify.system_under_test import CanRestart, Trouble, trouble
from tidegate.certify.trial import NotTried, Trial, shown
from tidegate.core.answers import Done, Unknown

# After so many turns of the event loop the asker dies: often at first, when much happens.
TURNS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 25, 32, 40, 60, 100, 200, 400, 1000)


def meeting(name: str) -> Callable[[Trial], Awaitable[None]]:
    """A scene in which a yes and a no each meet a trouble, and are asked again when it is over."""

    async def scene(trial: Trial) -> None:
        found = trouble(trial.bench, name)
        if found is None:
            raise NotTried(f"the bench has no {name}()")
        await _meet(trial, name, found)

    return scene


async def _meet(trial: Trial, name: str, found: Trouble) -> None:
    left = 100
    for question, moves in ((trial.debit(40), -40), (trial.credit(5), 5), (trial.debit(900), 0)):
        async with found():
            trial.tell(f"{name}:")
            said = await trial.one(question)
        trial.tell("all is well again:")
        after = await trial.final(question)
        if not isinstance(said, Unknown) and type(said) is not type(after):
            trial.broken(f"what was said stays said, or was Unknown: {shown(said)}")
        if isinstance(after, Done) != bool(moves):
            trial.broken(f"asked again, it is {'Done' if moves else 'Rejected'}")
        await trial.same(question, after)
        left += moves
        await trial.has(left)


async def unreachable(trial: Trial) -> None:
    """Nobody hears the question, so nobody can have answered it."""
    found = trouble(trial.bench, "unreachable")
    if found is None:
        raise NotTried("the bench has no unreachable()")
    question = trial.debit(40)
    async with found():
        trial.tell("unreachable:")
        if not isinstance(await trial.one(question), Unknown):
            trial.broken("with nobody there it raises Unreachable, or answers Unknown")
    trial.tell("all is well again:")
    await trial.done(question)
    await trial.has(60)


async def asker_killed(trial: Trial) -> None:
    """The worker dies after so many turns of its loop; another asks the same again."""
    left = 100
    for turns in TURNS:
        question = trial.debit(1)
        asking = asyncio.ensure_future(trial.bench.system.ask([question]))
        for _ in range(turns):
            await asyncio.sleep(0)
        answered = asking.done()
        asking.cancel()
        # Whether it ended by its death, with an answer or with a fault: nobody heard of it.
        await asyncio.gather(asking, return_exceptions=True)
        trial.tell(f"the asker died after {turns} turns of its loop; another asks:")
        await trial.done(question)
        left -= 1
        await trial.has(left)
        if answered:
            return


async def restart(trial: Trial) -> None:
    if not isinstance(trial.bench, CanRestart):
        raise NotTried("the bench has no restart()")
    done, refused = trial.debit(40), trial.debit(900)
    await trial.done(done)
    before = await trial.rejected(refused)
    undone, reversible = trial.debit(7), trial.bench.system.reversible
    if reversible:
        await trial.done(trial.undo(undone, expect_done=False))
    await trial.bench.restart()
    trial.tell("restarted")
    await trial.fund(1000)
    await trial.same(done, Done())
    await trial.same(refused, before)
    if reversible:
        await trial.rejected(undone)
        await trial.done(trial.undo(done))
    await trial.has(1100 if reversible else 1060)


FAULTS = (
    Check(
        "killed-before",
        "Killed before the effect, it has not happened, and happens once when asked again",
        "a crash would be taken for a «no», or leave a key that can never be answered",
        "do not catch what is raised: Unknown is what it means, and the engine asks again",
        meeting("killed_before"),
    ),
    Check(
        "killed-after",
        "Killed after the effect, it has happened, and says so when asked again",
        "the money is gone and the answer with it: asked again, it would be taken twice",
        "commit the answer and the effect in one transaction, before anything is said",
        meeting("killed_after"),
    ),
    Check(
        "reply-lost",
        "A lost reply is Unknown, and the same question finds the answer",
        "a timeout taken for a «no» gives the money back though it arrived",
        "a timeout, a broken connection, a 500 are Unknown: raise, or return Unknown",
        meeting("reply_lost"),
    ),
    Check(
        "unreachable",
        "With nobody there to hear it, the answer is Unknown, and never yes or no",
        "a network that is down for a minute would roll back transfers that may have happened",
        "raise Unreachable when there was no word at all, and let other exceptions pass",
        unreachable,
    ),
    Check(
        "asker-killed",
        "Whoever asks may die at any moment; another asks the same, and it happens once",
        "an effect whose asker is gone would be repeated, or half of it be left behind",
        "leave nothing half done at an await: one transaction, or keys at both ends",
        asker_killed,
    ),
    Check(
        "restart",
        "Answers survive a restart: yes, no and tombstones",
        "after the next deployment every late duplicate would move its money again",
        "keep operations where the balances are, and not in memory",
        restart,
    ),
)
