"""Put a check to a system on a bench of its own, and say what came of it."""

import asyncio
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from tidegate.certify.checks import Check
from tidegate.certify.system_under_test import Factory, opened
from tidegate.certify.trial import START, NotTried, PromiseBroken, Trial

CHECK_S = 60.0


class CheckOutcome(StrEnum):
    HELD = "held"
    FAILED = "failed"
    NOT_TRIED = "not tried"


class CheckResult(NamedTuple):
    """What came of one check. The story is what was asked, and what came back."""

    check: Check
    verdict: CheckOutcome
    why: str = ""
    story: Sequence[str] = ()


async def attempt(check: Check, factory: Factory, fresh: UUID) -> CheckResult:
    """One check in a task of its own: it may raise, hang or hold, and each says something.

    `fresh` is a name that no check before has used, so that benches may share what is behind them.
    """
    story: list[str] = []
    task = asyncio.ensure_future(_play(check, factory, fresh, story))
    done, _ = await asyncio.wait({task}, timeout=CHECK_S)
    if not done:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return CheckResult(check, CheckOutcome.FAILED, f"it ends within {CHECK_S:.0f} s", story)
    if fault := task.exception():
        why = f"the bench does its part, but it raised {type(fault).__name__}: {fault}"
        return CheckResult(check, CheckOutcome.FAILED, why, story)
    match task.result():
        case NotTried() as reason:
            return CheckResult(check, CheckOutcome.NOT_TRIED, str(reason))
        case PromiseBroken() as expected:
            return CheckResult(check, CheckOutcome.FAILED, str(expected), story)
        case None:
            return CheckResult(check, CheckOutcome.HELD)


async def _play(
    check: Check, factory: Factory, fresh: UUID, story: list[str]
) -> PromiseBroken | NotTried | None:
    async with opened(factory) as bench:
        trial = Trial(bench, fresh, story)
        # Kept in here, so that a bench whose clean-up has an opinion on exceptions sees none.
        try:
            await trial.fund(START)
            await trial.has(START)
            await check.scene(trial)
        except (PromiseBroken, NotTried) as ended:
            return ended
    return None
