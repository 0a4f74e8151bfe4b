"""Checks of crashes, lost replies, an unreachable system and restarts."""

import asyncio
from collections.abc import Awaitable, Callable

from tidegate.certify.checks.check import Check
from tidegate.certify.system_under_test import CanRestart, Trouble, trouble
from tidegate.certify.trial import NotTried, Trial, answer_text
from tidegate.core.answers import Done, Unknown

# The client is killed after so many turns of the event loop: mostly early, when most happens.
TURNS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 25, 32, 40, 60, 100, 200, 400, 1000)


def during_fault(name: str) -> Callable[[Trial], Awaitable[None]]:
    """A scene that asks questions during a fault, and again when the fault is over."""

    async def scene(trial: Trial) -> None:
        fault = trouble(trial.bench, name)
        if fault is None:
            raise NotTried(f"the bench has no {name}()")
        await _ask_during(trial, name, fault)

    return scene


async def _ask_during(trial: Trial, name: str, fault: Trouble) -> None:
    balance = 100
    for question, change in ((trial.debit(40), -40), (trial.credit(5), 5), (trial.debit(900), 0)):
        async with fault():
            trial.record(f"{name}:")
            during = await trial.ask_one(question)
        trial.record("the fault is over:")
        after = await trial.final_answer(question)
        if not isinstance(during, Unknown) and type(during) is not type(after):
            trial.fail(f"the answer during the fault is final or Unknown: {answer_text(during)}")
        if isinstance(after, Done) != bool(change):
            trial.fail(f"the repeated question is {'Done' if change else 'Rejected'}")
        await trial.assert_same(question, after)
        balance += change
        await trial.assert_balance(balance)


async def unreachable(trial: Trial) -> None:
    """No question reaches the system, so no question can have an answer."""
    fault = trouble(trial.bench, "unreachable")
    if fault is None:
        raise NotTried("the bench has no unreachable()")
    question = trial.debit(40)
    async with fault():
        trial.record("unreachable:")
        if not isinstance(await trial.ask_one(question), Unknown):
            trial.fail("the adapter raises Unreachable, or answers Unknown")
    trial.record("the fault is over:")
    await trial.assert_done(question)
    await trial.assert_balance(60)


async def asker_killed(trial: Trial) -> None:
    """Kill the client after so many turns of its event loop; then repeat the question."""
    balance = 100
    for turns in TURNS:
        question = trial.debit(1)
        asking = asyncio.ensure_future(trial.bench.system.ask([question]))
        for _ in range(turns):
            await asyncio.sleep(0)
        answered = asking.done()
        asking.cancel()
        # The result of the killed client is lost, whether an answer or an exception.
        await asyncio.gather(asking, return_exceptions=True)
        trial.record(f"the client was killed after {turns} turns of its loop; another asks:")
        await trial.assert_done(question)
        balance -= 1
        await trial.assert_balance(balance)
        if answered:
            return


async def restart(trial: Trial) -> None:
    if not isinstance(trial.bench, CanRestart):
        raise NotTried("the bench has no restart()")
    done, refused = trial.debit(40), trial.debit(900)
    await trial.assert_done(done)
    before = await trial.assert_rejected(refused)
    undone, reversible = trial.debit(7), trial.bench.system.reversible
    if reversible:
        await trial.assert_done(trial.undo(undone, expect_done=False))
    await trial.bench.restart()
    trial.record("restarted")
    await trial.fund(1000)
    await trial.assert_same(done, Done())
    await trial.assert_same(refused, before)
    if reversible:
        await trial.assert_rejected(undone)
        await trial.assert_done(trial.undo(done))
    await trial.assert_balance(1100 if reversible else 1060)


FAULTS = (
    Check(
        "killed-before",
        "If the system crashes before the effect, a repeated question is done once",
        "a crash would be taken for a refusal, or leave a key that is never answered",
        "do not catch the exception: the engine takes it as Unknown and asks again",
        during_fault("killed_before"),
    ),
    Check(
        "killed-after",
        "If the system crashes after the effect, a repeated question gets the stored answer",
        "the money has moved and the answer is lost: a repeated question would move it again",
        "commit the answer and the effect in one transaction, before you reply",
        during_fault("killed_after"),
    ),
    Check(
        "reply-lost",
        "A lost reply is Unknown, and a repeated question gets the stored answer",
        "if a timeout counted as a refusal, the money would be given back although it arrived",
        "a timeout, a broken connection and a 500 are Unknown: raise, or return Unknown",
        during_fault("reply_lost"),
    ),
    Check(
        "unreachable",
        "If the system is unreachable, the answer is Unknown, never Done or Rejected",
        "a network that is down for a minute would roll back transfers that may have happened",
        "raise Unreachable if there was no reply at all, and do not catch other exceptions",
        unreachable,
    ),
    Check(
        "asker-killed",
        "If the client is killed at any moment, a repeated question is done once",
        "an effect would be repeated, or only half of it would be done",
        "leave nothing half done at an await: use one transaction, or keys at both ends",
        asker_killed,
    ),
    Check(
        "restart",
        "Done, Rejected and tombstones survive a restart",
        "after the next deployment every late duplicate would move its money again",
        "store operations where the balances are stored, not in memory",
        restart,
    ),
)
