"""Bugs of the transfer pool: what is approved, what is paid, and what is written down of it."""

from collections.abc import Sequence

import pytest

from tidegate.core.answers import Answer, Done
from tidegate.core.kind import Party
from tidegate.core.ports import MemoryTransaction
from tidegate.core.transfer import Move, Question
from tidegate.simulation.pool_auditor import PASSED
from tidegate.systems.guild.judge import AllowanceJudge, MemberFacts
from tidegate.systems.guild.memory import PENDING, MemoryAllowance, MemoryChecks, PoolRecord

Patch = pytest.MonkeyPatch


def stale_checks_approve(patch: Patch) -> None:
    """What has passed its checks once is taken to pass them in every later round."""
    fresh = MemoryChecks._answer

    def answer(self: MemoryChecks, tx: MemoryTransaction, question: Question, at_us: int) -> Answer:
        pending = tx.get(PENDING, question.transfer_id)
        if pending.round == 1:
            return fresh(self, tx, question, at_us)
        tx.put(PENDING, question.transfer_id, pending._replace(checks=tuple(PASSED.items())))
        return Done()

    patch.setattr(MemoryChecks, "_answer", answer)


def approved_is_paid(patch: Patch) -> None:
    """What was approved is paid without asking again under the initiator's lock."""

    async def ask(
        self: MemoryAllowance, tx: MemoryTransaction, questions: Sequence[Question]
    ) -> Sequence[Answer]:
        return [Done() for _ in questions]

    patch.setattr(MemoryAllowance, "ask", ask)


def allowance_sees_no_payment_before_it(patch: Patch) -> None:
    """The payments of one batch are allowed each as if it were the only one."""
    judge = AllowanceJudge.judge

    def judged(self: AllowanceJudge, question: Question) -> Answer:
        kept: dict[Party, MemberFacts] = dict(self.standings)
        answer = judge(self, question)
        self.standings = kept
        return answer

    patch.setattr(AllowanceJudge, "judge", judged)


def pool_keeps_no_record(patch: Patch) -> None:
    """The pool writes down that a transfer was born, and nothing that becomes of it."""

    async def moved(self: MemoryChecks, tx: MemoryTransaction, moves: Sequence[Move]) -> None:
        for move in moves:
            if move.before is None:
                tx.put(PENDING, move.after.id, PoolRecord("checking"))

    patch.setattr(MemoryChecks, "moved", moved)
