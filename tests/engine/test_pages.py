"""One alert is sent for each cause, however often the question is asked again."""

import asyncio
from collections.abc import Sequence

import pytest

from tests.engine.rig import Execute, Play, Rig, made, request
from tidegate.core.answers import Alarm, Answer, Done, Rejected, Unknown
from tidegate.core.flow import Verb
from tidegate.core.transfer import Question
from tidegate.engine.alerts import open_question_cause
from tidegate.flows import FLOWS
from tidegate.serving import tuned
from tidegate.systems.ledger import LedgerStatus

pytestmark = pytest.mark.slow

QUICK_S = 0.02
ENOUGH = 4  # Refusals of one refund. With a bug, the second one would send a second alert.


def impatient(rig: Rig, page_attempts: int = 1_000) -> None:
    """The same flows, but a refused question is asked again at once."""
    rig.flows = {name: tuned(flow, QUICK_S, page_attempts, 300.0) for name, flow in FLOWS.items()}


async def reached(rig: Rig, refusals: list[str], count: int) -> None:
    for _ in range(1_000):
        if len(refusals) >= count:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"only {len(refusals)} refusals; {rig.alerts}")


def test_a_refund_that_is_refused_repeatedly_sends_one_alert_per_reason(
    play: Play,
) -> None:
    async def scene(rig: Rig) -> None:
        impatient(rig)
        reasons, refusals = ["ACCOUNT_CLOSED"], list[str]()

        async def twist(questions: Sequence[Question], execute: Execute) -> Sequence[Answer]:
            if questions[0].verb is not Verb.REFUND:
                return execute()
            if not reasons:
                return execute()
            refusals.append(reasons[0])
            return [Rejected(reasons[0])]

        rig.outside.twist = twist
        await rig.set_status(LedgerStatus.DISABLED)
        async with rig.engine() as engine:
            transfer = await made(engine, request("out", 300))
            await reached(rig, refusals, ENOUGH)
            reasons[0] = "ACCOUNT_FROZEN"
            await reached(rig, refusals, 2 * ENOUGH)
            reasons.clear()
            [ended] = await rig.ended([transfer])
        assert ended.state == "ROLLED_BACK"
        assert ended.retries == len(refusals)
        pages = [a for a in rig.alerts if a.transfer_id == transfer.id]
        assert [page.cause for page in pages] == [
            open_question_cause("venue", Verb.REFUND, pages[0].retries or 0, "ACCOUNT_CLOSED"),
            open_question_cause("venue", Verb.REFUND, pages[1].retries or 0, "ACCOUNT_FROZEN"),
            "cleared: the open question in COMPENSATING was answered",
        ]

    play(scene)


def test_a_halt_is_reported_although_an_alert_was_sent_before(play: Play) -> None:
    async def scene(rig: Rig) -> None:
        impatient(rig, page_attempts=1)
        answers: list[Answer] = [Unknown("no answer")]

        async def twist(questions: Sequence[Question], execute: Execute) -> Sequence[Answer]:
            if questions[0].verb is Verb.DEBIT:
                return [Done()]  # False, so that the undo finds nothing to undo.
            return answers or execute()

        rig.outside.twist = twist
        await rig.set_status(LedgerStatus.DISABLED)
        async with rig.engine() as engine:
            transfer = await made(engine, request("out", 300))
            for _ in range(500):
                if any(a.alarm > Alarm.NONE for a in rig.alerts):
                    break
                await asyncio.sleep(0.02)
            answers.clear()
            for _ in range(500):
                if await rig.store.halted():
                    break
                await asyncio.sleep(0.02)
        assert await rig.store.halted()
        alarms = [a.alarm for a in rig.alerts if a.transfer_id == transfer.id]
        assert alarms == [Alarm.CRITICAL, Alarm.HALT]

    play(scene)
