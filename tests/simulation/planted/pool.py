"""Bugs of the transfer pool: in its approval, its payment and its records."""

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
    """A transfer that passed its checks once passes them in every later round."""
    fresh = MemoryChecks._answer

    def answer(self: MemoryChecks, tx: MemoryTransaction, question: Question, at_us: int) -> Answer:
        pending = tx.get(PENDING, question.transfer_id)
        if pending.round == 1:
            return fresh(self, tx, question, at_us)
        tx.put(PENDING, question.transfer_id, pending._replace(checks=tuple(PASSED.items())))
        return Done()

    patch.setattr(MemoryChecks, "_answer", answer)


def approved_is_paid(patch: Patch) -> None:
    """An approved transfer is paid without a second check under the payer's lock."""

    async def ask(
        self: MemoryAllowance, tx: MemoryTransaction, questions: Sequence[Question]
    ) -> Sequence[Answer]:
        return [Done() for _ in questions]

    patch.setattr(MemoryAllowance, "ask", ask)


def allowance_sees_no_payment_before_it(patch: Patch) -> None:
    """Each payment of a batch is allowed as if it were the only one."""
    judge = AllowanceJudge.judge

    def judged(self: AllowanceJudge, question: Question) -> Answer:
        before: dict[Party, MemberFacts] = dict(self.facts)
        answer = judge(self, question)
        self.facts = before
        return answer

    patch.setattr(AllowanceJudge, "judge", judged)


def pool_keeps_no_record(patch: Patch) -> None:
    """The pool records the creation of a transfer, and none of its later states."""

    async def moved(self: MemoryChecks, tx: MemoryTransaction, moves: Sequence[Move]) -> None:
        for move in moves:
            if move.before is None:
                tx.put(PENDING, move.after.id, PoolRecord("checking"))

    patch.setattr(MemoryChecks, "moved", moved)
