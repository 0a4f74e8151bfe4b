"""Whether the transfer pool's own record says what the engine's says, and what is true."""

from collections.abc import Mapping

from tidegate.core.transfer import Transfer
from tidegate.systems.guild.judge import LEDGER
from tidegate.systems.guild.memory import Pending, status_of

PASSED = {"balance": 1, "cooldown": 1, "daily_limit": 1}


def differing(
    transfer: Transfer, pooled: Pending | None, books: Mapping[tuple[str, int, str, int], int]
) -> str | None:
    """The difference, in words; None if there is none, or nothing to compare."""
    if "checks" not in transfer.parties:
        return None
    wanted = status_of(transfer.state), transfer.retries
    if pooled is None or (pooled.status, pooled.retry_count) != wanted:
        return f"{transfer.id} is {wanted}, and the pool has it as {pooled}"
    if pooled.status == "approved" and dict(pooled.checks) != PASSED:
        return f"{transfer.id} was approved by {dict(pooled.checks)}"
    source = transfer.parties["source"]
    held = books[LEDGER, source.owner, source.book, transfer.asset_id]
    # In the moment of its approval; that others are faster afterwards is for the allowance to see.
    approved = transfer.state == "APPROVED" and transfer.attempts <= 1
    if approved and source.system == LEDGER and held < transfer.amount:
        return f"{transfer.id} was approved to pay {transfer.amount} out of {held}"
    return None
