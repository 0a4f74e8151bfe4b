"""Whether the transfer pool's own record is true, and whether its rules were kept."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from tidegate.core.kind import Party, Transfer
from tidegate.systems.guild.judge import LEDGER
from tidegate.systems.guild.memory import (
    DAY_US,
    PENDING,
    SECOND_US,
    GuildRules,
    PoolRecord,
    status_of,
)

PASSED = {"balance": 1, "cooldown": 1, "daily_limit": 1}


class PoolAuditor:
    """Told of what was committed; blames what must not be."""

    def __init__(
        self, blame: Callable[[str], None], books: Mapping[tuple[str, int, str, int], int]
    ) -> None:
        self.blame, self.books = blame, books
        self.rules: dict[int, GuildRules] = {}
        self.pending: dict[UUID, PoolRecord] = {}
        self.paid: set[UUID] = set()
        self.sent: Counter[tuple[Party, int]] = Counter()  # By member and day.
        self.last_us: dict[Party, int] = {}

    def look(self, transfer: Transfer, written: Mapping[tuple[str, Any], Any]) -> None:
        kind = transfer.kind
        roles = [seat[0] for seat in kind.party_templates]
        if "checks" in roles:
            if (record := written.get((PENDING, transfer.id))) is not None:
                self.pending[transfer.id] = record
            self._compare(transfer, self.pending.get(transfer.id))
        paid = kind.state == "COMPLETED" and "allowance" in roles
        if paid and transfer.id not in self.paid:
            self._count(transfer, transfer.parties["allowance"])

    def _compare(self, transfer: Transfer, record: PoolRecord | None) -> None:
        wanted = status_of(transfer.state), transfer.retries
        if record is None or (record.status, record.retry_count) != wanted:
            self.blame(f"{transfer.id} is {wanted}, and the pool has it as {record}")
            return
        if record.status == "approved" and dict(record.checks) != PASSED:
            self.blame(f"{transfer.id} was approved by {dict(record.checks)}")
        source = transfer.parties["source"]
        held = self.books[LEDGER, source.owner, source.book, transfer.asset_id]
        # In the moment of approval; that others are faster afterwards is for the allowance to see.
        approved = transfer.state == "APPROVED" and transfer.attempts <= 1
        if approved and source.system == LEDGER and held < transfer.amount:
            self.blame(f"{transfer.id} was approved to pay {transfer.amount} out of {held}")

    def _count(self, transfer: Transfer, payer: Party) -> None:
        """What is paid out of the core was allowed in another transaction: it only counts."""
        at_us, rules = transfer.updated_us, self.rules.get(payer.owner, GuildRules())
        last_us = self.last_us.get(payer, 0)
        day = max(at_us, last_us) // DAY_US
        self.paid.add(transfer.id)
        self.last_us[payer] = max(at_us, last_us)
        self.sent[payer, day] += transfer.amount
        if transfer.parties["source"].system != LEDGER:
            return
        if rules.limit and self.sent[payer, day] > rules.limit:
            self.blame(
                f"{payer} sent {self.sent[payer, day]} a day, and {rules.limit} is the limit"
            )
        if rules.every_transfer and at_us < last_us + rules.cooldown_s * SECOND_US:
            self.blame(f"{payer} paid {transfer.amount} instead of cooling down")
