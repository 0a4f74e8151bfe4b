"""The guild's rules on PostgreSQL: functions of the database make the checks and record them."""

from collections.abc import Mapping, Sequence

from tidegate.core.account import Account
from tidegate.core.answers import Alarm, Answer, Done, Rejected, Unknown
from tidegate.core.ports import InboxRequest, SqlTransaction
from tidegate.core.refusals import Reason, Refusal
from tidegate.core.sql import load, names, numbers, uuids
from tidegate.core.transfer import Move, Question
from tidegate.systems.guild.judge import (
    ALLOWANCE,
    CHECKS,
    POOL_TRANSFER,
    AllowanceJudge,
    MemberFacts,
    PaymentMade,
    member_of,
    payments_made,
    rounds,
)

STATEMENTS = load("tidegate.systems.guild", "guild.sql")


class Allowance:
    """Decides whether a member may pay now, under the member's lock, in the paying transaction."""

    reversible = True

    def __init__(self, name: str = ALLOWANCE) -> None:
        self.name = name

    async def lock(
        self,
        tx: SqlTransaction,
        accounts: Sequence[Account],
        next_: Sequence[Question] = (),  # noqa: ARG002  Members are read in `ask`.
    ) -> None:
        members = _members([(account.owner, account.book) for account in accounts])
        await tx.post(STATEMENTS["open_members"], members)
        await tx.fetch(STATEMENTS["lock_members"], members)

    async def ask(self, tx: SqlTransaction, questions: Sequence[Question]) -> Sequence[Answer]:
        parties = list(dict.fromkeys(question.party for question in questions))
        members = _members([(party.owner, party.book) for party in parties])
        rows = await tx.fetch(STATEMENTS["standings"], members)
        facts = {p: MemberFacts(*row) for p, row in zip(parties, rows, strict=True)}
        judgement = AllowanceJudge(facts)
        answers = [judgement.judge(question) for question in questions]
        if refused := judgement.refused:
            values = {
                "guilds": numbers(r.guild for r in refused),
                "members": numbers(r.member for r in refused),
                "cooldowns": numbers(r.cooldown_s for r in refused),
            }
            await tx.post(STATEMENTS["throttle"], values)
        return answers

    async def moved(self, tx: SqlTransaction, moves: Sequence[Move]) -> None:
        """Add the payments to the day's totals."""
        if made := payments_made(moves):
            await tx.post(STATEMENTS["pay"], _payments(made))

    async def refused(
        self, tx: SqlTransaction, requests: Sequence[tuple[InboxRequest, Refusal]]
    ) -> None:
        """Do nothing: a refused request paid nothing."""


class Checks:
    """Makes the rounds of checks of a pool transfer, and keeps the pool's own records."""

    reversible = True

    def __init__(self, name: str = CHECKS) -> None:
        self.name = name

    async def lock(
        self, tx: SqlTransaction, accounts: Sequence[Account], next_: Sequence[Question] = ()
    ) -> None:
        """Do nothing: the allowance locks the same members, and comes first in the lock order."""

    async def ask(self, tx: SqlTransaction, questions: Sequence[Question]) -> Sequence[Answer]:
        checked = [q for q in questions if not q.void]
        rows = await tx.fetch(STATEMENTS["check"], {"ids": uuids(q.transfer_id for q in checked)})
        answers = {q.transfer_id: _answer(*row) for q, row in zip(checked, rows, strict=True)}
        return [answers.get(q.transfer_id, Rejected(Reason.UNDONE)) for q in questions]

    async def moved(self, tx: SqlTransaction, moves: Sequence[Move]) -> None:
        if created := [move for move in moves if move.before is None]:
            await tx.post(STATEMENTS["begin"], _created(created))
        values = {
            "ids": uuids(m.after.id for m in moves),
            "states": names(m.after.state for m in moves),
            "retries": numbers(m.after.retries for m in moves),
            "rounds": numbers(rounds(m) for m in moves),
            "reasons": names(m.after.error or "" for m in moves),
        }
        await tx.post(STATEMENTS["record"], values)

    async def refused(
        self, tx: SqlTransaction, requests: Sequence[tuple[InboxRequest, Refusal]]
    ) -> None:
        if refused := [(r, refusal) for r, refusal in requests if r.flow == POOL_TRANSFER]:
            values = {
                "ids": uuids(request.id for request, _ in refused),
                "reasons": names(str(refusal) for _, refusal in refused),
            }
            await tx.post(STATEMENTS["refuse"], values)


def _answer(verdict: str, reason: str, retry_s: float | None) -> Answer:
    match verdict:
        case "done":
            return Done()
        case "rejected":
            return Rejected(reason)
        case "unknown":
            return Unknown(reason, retry_s=retry_s)
        case _:
            # The pool's record and the engine's differ, although every transaction writes both.
            return Unknown(reason, Alarm.HALT)


def _members(keys: Sequence[tuple[int, str]]) -> Mapping[str, object]:
    return {
        "guilds": numbers(guild for guild, _ in keys),
        "members": numbers(member_of(book) for _, book in keys),
    }


def _payments(made: Sequence[PaymentMade]) -> Mapping[str, object]:
    return {
        "ids": uuids(p.move.after.id for p in made),
        "guilds": numbers(p.guild for p in made),
        "members": numbers(p.initiator for p in made),
        "targets": numbers(p.target for p in made),
        "amounts": numbers(p.move.after.amount for p in made),
    }


def _created(moves: Sequence[Move]) -> Mapping[str, object]:
    parties = [move.after.parties for move in moves]
    return {
        "ids": uuids(move.after.id for move in moves),
        "members": numbers(member_of(p["checks"].book) for p in parties),
        "targets": numbers(member_of(p["target"].book) for p in parties),
    }
