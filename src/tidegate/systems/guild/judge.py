"""Whether a member may pay, and when to ask again: pure rules over what was read under the lock."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tidegate.core.answers import Alarm, Answer, Done, Rejected, Unknown
from tidegate.core.flow import Verb
from tidegate.core.kind import Parties, Party
from tidegate.core.refusals import Reason
from tidegate.core.transfer import Move, Question

# Names of systems. Locks are taken in their order: members' rows before the ledger's accounts.
ALLOWANCE, CHECKS = "allowance", "checks"
LEDGER = "ledger"
POOL_TRANSFER = "pool_transfer"  # The flow whose requests the pool records.
POINT = 6  # The asset that guilds count in.
PREFIX = "member:"
# Why the allowance says no, besides what the ledger could say, too.
COOLDOWN, DAILY_LIMIT = "COOLDOWN", "DAILY_LIMIT_EXCEEDED"


class MemberFacts(NamedTuple):
    """What is known of a member who wants to pay."""

    available: int | None = None  # None: the ledger does not know them.
    status: str | None = None
    throttled_s: float | None = None  # How much longer they have to cool down.
    sent: int = 0  # Today.
    limit: int = 500  # A day; 0: none.
    cooldown_s: int = 300
    every_transfer: bool = False  # What starts a cooldown; else only a refusal for the limit does.
    exempt: bool = False  # The government: from cooldown and limit, not from having the money.


class LimitExceeded(NamedTuple):
    """Who was refused for the limit, and has to cool down for so long."""

    guild: int
    member: int
    cooldown_s: int


def book_of(member: int) -> str:
    return f"{PREFIX}{member}"


def member_of(book: str) -> int:
    return int(book.removeprefix(PREFIX))


def payment(guild: int, initiator: int, target: int) -> Parties:
    """Who plays which role. A guild's books are one owner's, so that it lives in one store."""
    payer, payee = book_of(initiator), book_of(target)
    return {
        "allowance": Party(ALLOWANCE, payer, guild),
        "checks": Party(CHECKS, payer, guild),
        "source": Party(LEDGER, payer, guild),
        "target": Party(LEDGER, payee, guild),
    }


def results(standing: MemberFacts, amount: int) -> dict[str, int]:
    """The three checks, 1 for one that passes."""
    has = standing.status == "ACTIVE" and (standing.available or 0) >= amount
    free = standing.exempt or standing.throttled_s is None
    return {"balance": int(has), "cooldown": int(free), "daily_limit": int(fits(standing, amount))}


def fits(standing: MemberFacts, amount: int) -> bool:
    return standing.exempt or not standing.limit or standing.sent + amount <= standing.limit


def check(standing: MemberFacts, amount: int, to_midnight_s: float) -> Answer:
    """What a round of checks comes to."""
    found = results(standing, amount)
    failed = [name for name, result in found.items() if not result]
    if standing.status is None:
        return Rejected(Reason.SOURCE_ACCOUNT_NOT_FOUND)
    if standing.status == "DISABLED":
        return Rejected(Reason.ACCOUNT_DISABLED)
    if not failed:
        return Done()
    waits = [to_midnight_s] if "daily_limit" in failed else []
    waits += [standing.throttled_s] if standing.throttled_s and not standing.exempt else []
    if "daily_limit" in failed and not standing.every_transfer:
        waits.append(float(standing.cooldown_s))
    known = "cooldown" in failed or "daily_limit" in failed
    return Unknown(" ".join(failed), retry_s=max(waits) if known else None)


class AllowanceJudge:
    """The allowance of a batch, in order: each question sees what those before it will spend.

    Whether an account exists and may be used is for the ledger to say, which is asked next.
    """

    def __init__(self, standings: Mapping[Party, MemberFacts]) -> None:
        self.standings = dict(standings)
        self.refused: list[LimitExceeded] = []

    def judge(self, question: Question) -> Answer:
        if question.void:
            return Rejected(Reason.UNDONE)
        if question.verb is not Verb.CHECK:
            return Unknown(f"the allowance does not know the verb {question.verb}", Alarm.PAGE)
        party, amount = question.party, question.amount
        standing = self.standings[party]
        if standing.available is not None and standing.available < amount:
            return Rejected(Reason.INSUFFICIENT_BALANCE)
        if standing.throttled_s is not None and not standing.exempt:
            return Rejected(COOLDOWN, {"retry_s": str(standing.throttled_s)})
        if not fits(standing, amount):
            if not standing.every_transfer:
                member = member_of(party.book)
                self.refused.append(LimitExceeded(party.owner, member, standing.cooldown_s))
                cooling = standing._replace(throttled_s=float(standing.cooldown_s))
                self.standings[party] = cooling
            spent = {"total_today": str(standing.sent), "limit": str(standing.limit)}
            return Rejected(DAILY_LIMIT, spent)
        left = None if standing.available is None else standing.available - amount
        cooling_s = float(standing.cooldown_s) if standing.every_transfer else None
        self.standings[party] = standing._replace(
            available=left, sent=standing.sent + amount, throttled_s=cooling_s
        )
        return Done()


class PaymentMade(NamedTuple):
    """A payment that was made."""

    move: Move
    guild: int
    initiator: int
    target: int


def payments_made(moves: Sequence[Move]) -> list[PaymentMade]:
    """Those of the moves by which the target got its money."""
    made = []
    for move in moves:
        parties = move.after.parties
        credited = any(e.verb == Verb.CREDIT and e.answer == "done" for e in move.entries)
        if credited and "target" in parties:
            payer, payee = parties["allowance"], parties["target"]
            ids = payer.owner, member_of(payer.book), member_of(payee.book)
            made.append(PaymentMade(move, *ids))
    return made


def rounds(move: Move) -> int:
    """How many rounds of checks began in a move."""
    return sum(e.path[-1] == "CHECKING" and e.path[0] != "CHECKING" for e in move.entries)
