"""The flows of Tidegate, one table per module. Read these to learn what Tidegate does."""

from collections.abc import Mapping

from tidegate.core.flow import Flow
from tidegate.flows.deposit import DEPOSIT
from tidegate.flows.external_withdrawal import EXTERNAL_WITHDRAWAL
from tidegate.flows.internal_transfer import INTERNAL_TRANSFER
from tidegate.flows.member_transfer import MEMBER_TRANSFER
from tidegate.flows.pool_transfer import POOL_TRANSFER

# Only processes with the systems of the guild may work on these flows: these systems keep a
# record of each move.
GUILD_FLOWS = frozenset({POOL_TRANSFER.name, MEMBER_TRANSFER.name})

FLOWS: Mapping[str, Flow] = {
    flow.name: flow
    for flow in (
        INTERNAL_TRANSFER,
        DEPOSIT,
        EXTERNAL_WITHDRAWAL,
        POOL_TRANSFER,
        MEMBER_TRANSFER,
    )
}
