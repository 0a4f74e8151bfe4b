"""Whether the accounts of the ledger follow from their operations."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from tidegate.core.account import Account
from tidegate.engine.audit_rules import AuditPass
from tidegate.store.audit_reads import AuditSnapshot

MAX_OWNERS = 2_000

_T = TypeVar("_T")


async def judge_accounts(then: AuditSnapshot, look: AuditPass) -> None:
    """Each account of the ledger follows from its operations."""
    suspects: list[int] | None = None
    if not look.full:
        held: dict[Account, int] = {}
        for piece in pieces(sorted({account.owner for account in look.ends}), MAX_OWNERS):
            held |= await then.available(piece)
        # An account that is not there holds nothing. The last operation may be one that we have not
        # read: then all are.
        suspects = [a.owner for a, ends in look.ends.items() if held.get(a, 0) not in ends]
    if suspects is None or suspects:
        look.problems += map(unfounded, await then.accounts(suspects))


def unfounded(account: Account) -> str:
    owner, book, asset_id = account
    return f"account {book} of {owner}, asset {asset_id}: it does not follow from its operations"


def pieces(values: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    return (values[start : start + size] for start in range(0, len(values), size))
