"""Checks that each ledger account equals the sum of its operations."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from tidegate.core.account import Account
from tidegate.engine.audit_rules import AuditPass
from tidegate.store.audit_reads import AuditSnapshot

MAX_OWNERS = 2_000

_T = TypeVar("_T")


async def judge_accounts(snapshot: AuditSnapshot, found: AuditPass) -> None:
    """Report each ledger account whose balance does not follow from its operations.

    A full audit checks all accounts. An incremental one first compares each balance with the
    balances after the operations that it has read. Only owners with a mismatch are checked fully:
    the last operation of an account may be one that this audit has not read.
    """
    suspects: list[int] | None = None
    if not found.full:
        available: dict[Account, int] = {}
        for owners in chunks(sorted({account.owner for account in found.balances}), MAX_OWNERS):
            available |= await snapshot.available(owners)
        # A missing account has a balance of 0.
        suspects = [
            account.owner
            for account, balances in found.balances.items()
            if available.get(account, 0) not in balances
        ]
    if suspects is None or suspects:
        found.problems += map(account_problem, await snapshot.accounts(suspects))


def account_problem(account: Account) -> str:
    owner, book, asset_id = account
    return (
        f"account {book} of owner {owner}, asset {asset_id}: "
        "the balance does not follow from the operations"
    )


def chunks(values: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    return (values[start : start + size] for start in range(0, len(values), size))
