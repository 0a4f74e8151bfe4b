"""Run one check on a new bench, and return its result."""

import asyncio
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from tidegate.certify.checks import Check
from tidegate.certify.system_under_test import Factory, open_bench
from tidegate.certify.trial import START, NotTried, PromiseBroken, Trial

CHECK_S = 60.0


class CheckOutcome(StrEnum):
    HELD = "held"
    FAILED = "failed"
    NOT_TRIED = "not tried"


class CheckResult(NamedTuple):
    """The result of one check. The story lists its questions and answers."""

    check: Check
    verdict: CheckOutcome
    reason: str = ""  # If it failed: what was expected. If it was not tried: why not.
    story: Sequence[str] = ()


async def run_check(check: Check, factory: Factory, fresh: UUID) -> CheckResult:
    """Run one check in a task of its own, because it may raise or hang: both are failures.

    `fresh` is an id that no other check has used, so that all checks may use one real system.
    """
    story: list[str] = []
    task = asyncio.ensure_future(_run_scene(check, factory, fresh, story))
    done, _ = await asyncio.wait({task}, timeout=CHECK_S)
    if not done:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        reason = f"the check ends within {CHECK_S:.0f} s"
        return CheckResult(check, CheckOutcome.FAILED, reason, story)
    if fault := task.exception():
        reason = f"the bench raises nothing, but it raised {type(fault).__name__}: {fault}"
        return CheckResult(check, CheckOutcome.FAILED, reason, story)
    match task.result():
        case NotTried() as missing:
            return CheckResult(check, CheckOutcome.NOT_TRIED, str(missing))
        case PromiseBroken() as expected:
            return CheckResult(check, CheckOutcome.FAILED, str(expected), story)
        case None:
            return CheckResult(check, CheckOutcome.HELD)


async def _run_scene(
    check: Check, factory: Factory, fresh: UUID, story: list[str]
) -> PromiseBroken | NotTried | None:
    async with open_bench(factory) as bench:
        trial = Trial(bench, fresh, story)
        # Caught inside the block: the clean-up of a bench may change or hide an exception.
        try:
            await trial.fund(START)
            await trial.assert_balance(START)
            await check.scene(trial)
        except (PromiseBroken, NotTried) as ended:
            return ended
    return None
