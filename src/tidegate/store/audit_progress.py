"""The progress of the full audit, which runs in slices, as kept in the store."""

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from tidegate.store.audit_reads import STATEMENTS
from tidegate.store.postgres import PostgresStore

LAST_ID = UUID(int=2**128 - 1)
LAST_OWNER = 2**63 - 1
ENDS = {"last_id": LAST_ID, "last_owner": LAST_OWNER}


class AuditProgress(NamedTuple):
    """All transfers up to this id and all owners up to this one were judged in this sweep."""

    id: UUID
    owner: int
    transfers: int  # Number judged so far.
    owners: int  # Number judged so far.
    elapsed_s: float
    about_transfers: int  # The planner's estimate of the total.
    about_owners: int

    @property
    def over(self) -> bool:
        return (self.id, self.owner) == (LAST_ID, LAST_OWNER)


async def current(store: PostgresStore, period_s: float) -> AuditProgress:
    """The current sweep. Start a new one if the last has finished and the period is over."""
    await store.run(STATEMENTS["restart_sweep"], {**ENDS, "period_s": period_s})
    [row] = await store.run(STATEMENTS["sweep"], {})
    return AuditProgress(*row)


async def advance(
    store: PostgresStore, begun: AuditProgress, reached: AuditProgress
) -> Sequence[tuple[UUID, str, str]]:
    """Store the progress. Return the transfers that no scan would have found, with lane and state;
    they are due now.
    """
    values = {
        "from_id": begun.id,
        "from_owner": begun.owner,
        "to_id": reached.id,
        "to_owner": reached.owner,
        "transfers": reached.transfers - begun.transfers,
        "owners": reached.owners - begun.owners,
    }
    await store.run(STATEMENTS["advance_sweep"], {**ENDS, **values})
    return await store.run(STATEMENTS["rescue"], {"from_id": begun.id, "to_id": reached.id})


async def verified(store: PostgresStore, at_us: int) -> None:
    await store.run(STATEMENTS["verified"], {"at_us": at_us})


async def age_s(store: PostgresStore) -> float:
    [(age,)] = await store.run(STATEMENTS["sweep_age"], {})
    return float(age)
