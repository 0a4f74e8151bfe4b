"""The guild's rules in memory, for simulation: the same rules over tables in memory."""

from collections.abc import Sequence
from typing import NamedTuple

from tidegate.core.account import Account
from tidegate.core.answers import Alarm, Answer, Rejected, Unknown
from tidegate.core.kind import Party
from tidegate.core.ports import InboxRequest, MemoryTransaction
from tidegate.core.refusals import Reason, Refusal
from tidegate.core.transfer import Move, Question
from tidegate.systems.guild.judge import (
    ALLOWANCE,
    CHECKS,
    POOL_TRANSFER,
    AllowanceJudge,
    MemberFacts,
    check,
    fits,
    member_of,
    payments_made,
    results,
    rounds,
)

THROTTLES, PENDING = "throttles", "pending_transfers"
SETTINGS, GOVERNMENT = "guild_settings", "government_accounts"
# Tables of the ledger and the engine. The real systems read them in SQL.
ACCOUNTS, TRANSFERS = "ledger_accounts", "transfers"
SECOND_US, DAY_US = 1_000_000, 86_400_000_000
MOVING = ("DEBITING", "CREDITING", "RETURNING")


class MemberThrottle(NamedTuple):
    until_us: int | None = None
    day: int = -1
    sent: int = 0


class GuildRules(NamedTuple):
    """A guild's settings."""

    limit: int = 500
    cooldown_s: int = 300
    every_transfer: bool = False


class PoolRecord(NamedTuple):
    """The pool's own record of a transfer."""

    status: str
    round: int = 1
    checks: tuple[tuple[str, int], ...] = ()
    retry_count: int = 0


def status_of(state: str) -> str:
    return "approved" if state in MOVING else state.lower()


def facts_of(tx: MemoryTransaction, party: Party, asset_id: int, at_us: int) -> MemberFacts:
    member = party.owner, member_of(party.book)
    throttle = tx.get(THROTTLES, member) or MemberThrottle()
    rules = tx.get(SETTINGS, party.owner) or GuildRules()
    balance = tx.get(ACCOUNTS, Account(party.owner, party.book, asset_id))
    throttled_us = 0 if throttle.until_us is None else throttle.until_us - at_us
    return MemberFacts(
        None if balance is None else balance.available,
        None if balance is None else str(balance.status),
        throttled_us / SECOND_US if throttled_us > 0 else None,
        throttle.sent if throttle.day >= at_us // DAY_US else 0,
        rules.limit,
        rules.cooldown_s,
        rules.every_transfer,
        tx.get(GOVERNMENT, member) is not None,
    )


def cool_down(tx: MemoryTransaction, member: tuple[int, int], until_us: int) -> None:
    throttle = tx.get(THROTTLES, member) or MemberThrottle()
    latest_us = max(until_us, throttle.until_us or 0)
    tx.put(THROTTLES, member, throttle._replace(until_us=latest_us))


class MemoryAllowance:
    """The allowance in memory. It pauses where the real one runs a statement."""

    reversible = True

    def __init__(self, name: str = ALLOWANCE) -> None:
        self.name = name

    async def lock(
        self,
        tx: MemoryTransaction,
        accounts: Sequence[Account],
        next_: Sequence[Question] = (),  # noqa: ARG002  Members are read in `ask`.
    ) -> None:
        members = [(account.owner, member_of(account.book)) for account in accounts]
        await tx.pause()
        for member in sorted(members):
            await tx.insert(THROTTLES, member, MemberThrottle())
        await tx.lock(THROTTLES, sorted(members))

    async def ask(self, tx: MemoryTransaction, questions: Sequence[Question]) -> Sequence[Answer]:
        at_us = (await tx.begun()).at_us
        await tx.pause()
        judgement = AllowanceJudge(
            {q.party: facts_of(tx, q.party, q.asset_id, at_us) for q in questions}
        )
        answers = [judgement.judge(question) for question in questions]
        if judgement.refused:
            await tx.pause()
        for guild, member, cooldown_s in judgement.refused:
            cool_down(tx, (guild, member), at_us + cooldown_s * SECOND_US)
        return answers

    async def refused(
        self, tx: MemoryTransaction, requests: Sequence[tuple[InboxRequest, Refusal]]
    ) -> None:
        """Do nothing: a refused request paid nothing."""

    async def moved(self, tx: MemoryTransaction, moves: Sequence[Move]) -> None:
        at_us = (await tx.begun()).at_us
        made = payments_made(moves)
        if made:
            await tx.pause()
        for move, guild, initiator, _ in made:
            member, today = (guild, initiator), at_us // DAY_US
            throttle = tx.get(THROTTLES, member) or MemberThrottle()
            sent = throttle.sent if throttle.day >= today else 0
            total = sent + move.after.amount
            latest = max(throttle.day, today)
            tx.put(THROTTLES, member, throttle._replace(day=latest, sent=total))
            rules = tx.get(SETTINGS, guild) or GuildRules()
            if rules.every_transfer:
                cool_down(tx, member, at_us + rules.cooldown_s * SECOND_US)


class MemoryChecks:
    """The checks in memory. They pause where the real ones run a statement."""

    reversible = True

    def __init__(self, name: str = CHECKS) -> None:
        self.name = name

    async def lock(
        self,
        tx: MemoryTransaction,
        accounts: Sequence[Account],
        next_: Sequence[Question] = (),
    ) -> None:
        """Do nothing: the allowance locks the same members, and comes first in the lock order."""

    async def ask(self, tx: MemoryTransaction, questions: Sequence[Question]) -> Sequence[Answer]:
        await tx.pause()
        at_us = (await tx.begun()).at_us
        return [self._answer(tx, question, at_us) for question in questions]

    def _answer(self, tx: MemoryTransaction, question: Question, at_us: int) -> Answer:
        if question.void:
            return Rejected(Reason.UNDONE)
        pending = tx.get(PENDING, question.transfer_id)
        if pending is None or pending.status != "checking":
            return Unknown(f"the pool has it as {pending}", Alarm.HALT)
        expires_s = tx.get(TRANSFERS, question.transfer_id).expires_s
        if expires_s is not None and expires_s * SECOND_US <= at_us:
            return Unknown("expired", retry_s=1.0)
        party, amount = question.party, question.amount
        facts = facts_of(tx, party, question.asset_id, at_us)
        checks = tuple(results(facts, amount).items())
        tx.put(PENDING, question.transfer_id, pending._replace(checks=checks))
        if not fits(facts, amount) and not facts.every_transfer:
            member = party.owner, member_of(party.book)
            cool_down(tx, member, at_us + facts.cooldown_s * SECOND_US)
        to_midnight_us = DAY_US - at_us % DAY_US
        return check(facts, amount, to_midnight_us / SECOND_US)

    async def refused(
        self, tx: MemoryTransaction, requests: Sequence[tuple[InboxRequest, Refusal]]
    ) -> None:
        refused = [request for request, _ in requests if request.flow == POOL_TRANSFER]
        if refused:
            await tx.pause()
        for request in refused:
            tx.put(PENDING, request.id, PoolRecord("rejected"))

    async def moved(self, tx: MemoryTransaction, moves: Sequence[Move]) -> None:
        if any(move.before is None for move in moves):
            await tx.pause()
        await tx.pause()
        for move in moves:
            after = move.after
            pending = tx.get(PENDING, after.id) or PoolRecord("pending")
            started = rounds(move)
            tx.put(
                PENDING,
                after.id,
                PoolRecord(
                    status_of(after.state),
                    pending.round + started,
                    () if started else pending.checks,
                    after.retries,
                ),
            )
