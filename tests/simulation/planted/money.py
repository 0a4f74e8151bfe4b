"""Bugs of accounts, fees and halts."""

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from tidegate.core.account import Account
from tidegate.core.flow import Ask, Verb
from tidegate.core.transfer import Question
from tidegate.engine import audit_rules
from tidegate.store.audit_reads import AuditedRow, LedgerRow
from tidegate.store.memory_state import MemoryHalts
from tidegate.systems.ledger import SUSPENSE, judge, memory
from tidegate.systems.ledger.judge import LedgerJudge, LedgerOperation

Patch = pytest.MonkeyPatch


def second_halt_is_lost(patch: Patch) -> None:
    """A halt during a halt is dropped, so that the first resume ends both."""
    add, end = MemoryHalts.add, MemoryHalts.end

    def first_only(self: MemoryHalts, reason: str, actor: str, at_us: int) -> int:
        return add(self, reason, actor, at_us) if not self else 0

    def all_of_them(self: MemoryHalts, ids: object = None) -> object:
        return end(self)

    patch.setattr(MemoryHalts, "add", first_only)
    patch.setattr(MemoryHalts, "end", all_of_them)


def audit_ignores_the_account(patch: Patch) -> None:
    """The audit compares the asset of an operation, and not its account."""

    def as_asked(row: AuditedRow, ask: Ask, found: Mapping[int, LedgerRow]) -> bool:
        return all(o.account.asset_id == row.asset_id for o in found.values())

    patch.setattr(audit_rules, "_as_asked", as_asked)


def ledger_credits_another_book(patch: Patch) -> None:
    """Every credit is made to the owner's suspense book instead of the requested book."""
    account_of = judge.account_of

    def elsewhere(question: Question) -> Account:
        account = account_of(question)
        return account._replace(book=SUSPENSE) if question.verb is Verb.CREDIT else account

    patch.setattr(judge, "account_of", elsewhere)
    patch.setattr(memory, "account_of", elsewhere)


def ledger_keeps_the_fee(patch: Patch) -> None:
    """The target is credited without the fee, and the fee is not credited at all."""
    move = LedgerJudge._write_move

    def without(
        self: LedgerJudge, question: Question, account: Account, entry: int = 0
    ) -> LedgerOperation:
        if entry:
            question = replace(question, amount=0)
        return move(self, question, account, entry)

    patch.setattr(LedgerJudge, "_write_move", without)


def target_gets_the_fee_too(patch: Patch) -> None:
    """The fee is credited, and the target is credited with the full amount as well."""
    patch.setattr(judge, "net_part", lambda q: replace(q, fee=0, fees=None))


def refund_of_captured_money_is_refused(patch: Patch) -> None:
    """Only a debit can be refunded, so that captured money is stuck if the target refuses it."""
    patch.setitem(judge.UNDONE, Verb.REFUND, (Verb.DEBIT,))
