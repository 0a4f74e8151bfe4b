"""An auditor of the transfer pool: its own records must be true, and its rules must be kept."""

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
    """Checks every committed transfer of a guild, and reports violations."""

    def __init__(
        self, report: Callable[[str], None], books: Mapping[tuple[str, int, str, int], int]
    ) -> None:
        self.report, self.books = report, books
        self.rules: dict[int, GuildRules] = {}
        self.pending: dict[UUID, PoolRecord] = {}
        self.paid: set[UUID] = set()
        self.sent: Counter[tuple[Party, int]] = Counter()  # By member and day.
        self.last_us: dict[Party, int] = {}

    def check(self, transfer: Transfer, written: Mapping[tuple[str, Any], Any]) -> None:
        kind = transfer.kind
        roles = [template[0] for template in kind.party_templates]
        if "checks" in roles:
            if (record := written.get((PENDING, transfer.id))) is not None:
                self.pending[transfer.id] = record
            self._check_record(transfer, self.pending.get(transfer.id))
        paid = kind.state == "COMPLETED" and "allowance" in roles
        if paid and transfer.id not in self.paid:
            self._check_rules(transfer, transfer.parties["allowance"])

    def _check_record(self, transfer: Transfer, record: PoolRecord | None) -> None:
        expected = status_of(transfer.state), transfer.retries
        if record is None or (record.status, record.retry_count) != expected:
            self.report(f"{transfer.id} is {expected}, but the pool's record is {record}")
            return
        if record.status == "approved" and dict(record.checks) != PASSED:
            self.report(f"{transfer.id} was approved with checks {dict(record.checks)}")
        source = transfer.parties["source"]
        held = self.books[LEDGER, source.owner, source.book, transfer.asset_id]
        # Only at the moment of approval. The allowance checks payments that come in between.
        approved = transfer.state == "APPROVED" and transfer.attempts <= 1
        if approved and source.system == LEDGER and held < transfer.amount:
            self.report(f"{transfer.id} was approved to pay {transfer.amount} from {held}")

    def _check_rules(self, transfer: Transfer, payer: Party) -> None:
        """Check the limit and the cooldown.

        A payment from the core was allowed in an earlier transaction, so it is only counted.
        """
        at_us, rules = transfer.updated_us, self.rules.get(payer.owner, GuildRules())
        last_us = self.last_us.get(payer, 0)
        day = max(at_us, last_us) // DAY_US
        self.paid.add(transfer.id)
        self.last_us[payer] = max(at_us, last_us)
        self.sent[payer, day] += transfer.amount
        if transfer.parties["source"].system != LEDGER:
            return
        if rules.limit and self.sent[payer, day] > rules.limit:
            self.report(f"{payer} sent {self.sent[payer, day]} in a day over limit {rules.limit}")
        if rules.every_transfer and at_us < last_us + rules.cooldown_s * SECOND_US:
            self.report(f"{payer} paid {transfer.amount} during the cooldown")
