"""The rules of whether a member may pay: pure functions of the facts read under the lock."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tidegate.core.answers import Alarm, Answer, Done, Rejected, Unknown
from tidegate.core.flow import Verb
from tidegate.core.kind import Parties, Party
from tidegate.core.refusals import Reason
from tidegate.core.transfer import Move, Question

# Names of systems. Locks are taken in the order of names: members' rows before ledger accounts.
ALLOWANCE, CHECKS = "allowance", "checks"
LEDGER = "ledger"
POOL_TRANSFER = "pool_transfer"  # The pool keeps its own record of the requests of this flow.
POINT = 6  # The asset of all guild accounts.
PREFIX = "member:"
# The refusals of the allowance that the ledger does not have.
COOLDOWN, DAILY_LIMIT = "COOLDOWN", "DAILY_LIMIT_EXCEEDED"


class MemberFacts(NamedTuple):
    """The facts about a member that decide whether the member may pay."""

    available: int | None = None  # None: the member has no ledger account.
    status: str | None = None
    throttled_s: float | None = None  # The rest of the cooldown.
    sent: int = 0  # Today.
    limit: int = 500  # Per day; 0 means no limit.
    cooldown_s: int = 300
    # True: every payment starts a cooldown. False: only a refusal for the limit does.
    every_transfer: bool = False
    exempt: bool = False  # A government account: no cooldown and no limit, but it needs the money.


class LimitExceeded(NamedTuple):
    """A member that was refused for the daily limit, with the cooldown that follows."""

    guild: int
    member: int
    cooldown_s: int


def book_of(member: int) -> str:
    return f"{PREFIX}{member}"


def member_of(book: str) -> int:
    return int(book.removeprefix(PREFIX))


def payment(guild: int, initiator: int, target: int) -> Parties:
    """The parties of a payment. All books of a guild have one owner, so they are in one store."""
    payer, payee = book_of(initiator), book_of(target)
    return {
        "allowance": Party(ALLOWANCE, payer, guild),
        "checks": Party(CHECKS, payer, guild),
        "source": Party(LEDGER, payer, guild),
        "target": Party(LEDGER, payee, guild),
    }


def results(facts: MemberFacts, amount: int) -> dict[str, int]:
    """The results of the three checks: 1 if the check passes."""
    funded = facts.status == "ACTIVE" and (facts.available or 0) >= amount
    free = facts.exempt or facts.throttled_s is None
    return {"balance": int(funded), "cooldown": int(free), "daily_limit": int(fits(facts, amount))}


def fits(facts: MemberFacts, amount: int) -> bool:
    """Whether the amount is within the daily limit."""
    return facts.exempt or not facts.limit or facts.sent + amount <= facts.limit


def check(facts: MemberFacts, amount: int, to_midnight_s: float) -> Answer:
    """The answer of one round of checks."""
    failed = [name for name, result in results(facts, amount).items() if not result]
    if facts.status is None:
        return Rejected(Reason.SOURCE_ACCOUNT_NOT_FOUND)
    if facts.status == "DISABLED":
        return Rejected(Reason.ACCOUNT_DISABLED)
    if not failed:
        return Done()
    waits = [to_midnight_s] if "daily_limit" in failed else []
    waits += [facts.throttled_s] if facts.throttled_s and not facts.exempt else []
    if "daily_limit" in failed and not facts.every_transfer:
        waits.append(float(facts.cooldown_s))
    timed = "cooldown" in failed or "daily_limit" in failed
    return Unknown(" ".join(failed), retry_s=max(waits) if timed else None)


class AllowanceJudge:
    """Judges a batch in order. Each question sees the spending of those before it.

    It does not refuse for a missing or blocked account: the ledger is asked next and does that.
    """

    def __init__(self, facts: Mapping[Party, MemberFacts]) -> None:
        self.facts = dict(facts)
        self.refused: list[LimitExceeded] = []

    def judge(self, question: Question) -> Answer:
        if question.void:
            return Rejected(Reason.UNDONE)
        if question.verb is not Verb.CHECK:
            return Unknown(f"the allowance does not know the verb {question.verb}", Alarm.PAGE)
        party, amount = question.party, question.amount
        facts = self.facts[party]
        if facts.available is not None and facts.available < amount:
            return Rejected(Reason.INSUFFICIENT_BALANCE)
        if facts.throttled_s is not None and not facts.exempt:
            return Rejected(COOLDOWN, {"retry_s": str(facts.throttled_s)})
        if not fits(facts, amount):
            if not facts.every_transfer:
                member = member_of(party.book)
                self.refused.append(LimitExceeded(party.owner, member, facts.cooldown_s))
                self.facts[party] = facts._replace(throttled_s=float(facts.cooldown_s))
            spent = {"total_today": str(facts.sent), "limit": str(facts.limit)}
            return Rejected(DAILY_LIMIT, spent)
        left = None if facts.available is None else facts.available - amount
        cooldown_s = float(facts.cooldown_s) if facts.every_transfer else None
        self.facts[party] = facts._replace(
            available=left, sent=facts.sent + amount, throttled_s=cooldown_s
        )
        return Done()


class PaymentMade(NamedTuple):
    """A completed payment, with its move."""

    move: Move
    guild: int
    initiator: int
    target: int


def payments_made(moves: Sequence[Move]) -> list[PaymentMade]:
    """The payments among the moves: those that credited their target."""
    payments = []
    for move in moves:
        parties = move.after.parties
        credited = any(e.verb == Verb.CREDIT and e.answer == "done" for e in move.entries)
        if credited and "target" in parties:
            payer, payee = parties["allowance"], parties["target"]
            ids = payer.owner, member_of(payer.book), member_of(payee.book)
            payments.append(PaymentMade(move, *ids))
    return payments


def rounds(move: Move) -> int:
    """How many rounds of checks started in a move."""
    return sum(e.path[-1] == "CHECKING" and e.path[0] != "CHECKING" for e in move.entries)
