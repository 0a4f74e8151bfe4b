"""Pool transfer: a member of a guild pays another, checked first and executed as soon as it may be.

The checks answer in rounds, and wait with what cannot pass yet: for a cooldown, for the next day,
for money. They reserve nothing, so that the allowance is asked once more in the transaction that
moves the money, under the initiator's lock; where it says no, the next round of checks begins.
"""

from enum import StrEnum

from tidegate.core.flow import URGENT, Ask, End, Flow, Pass, Place, RetryPolicy, Verb

EXPIRES_S = 24 * 3600.0
# 1 s, 2 s, 4 s … 300 s, ten times. A time that is known, such as midnight, is no pause of these.
POOLED = RetryPolicy(
    first_s=1.0, cap_s=300.0, page_attempts=None, page_after_s=None, chance=0.0, most=10
)


class State(StrEnum):
    PENDING = "PENDING"
    CHECKING = "CHECKING"
    APPROVED = "APPROVED"
    DEBITING = "DEBITING"
    CREDITING = "CREDITING"
    RETURNING = "RETURNING"
    COMPLETED = "COMPLETED"
    REJECTED = "REJECTED"


POOL_TRANSFER = Flow(
    "pool_transfer",
    first=State.PENDING,
    rows={
        State.PENDING: Pass(Place.SOURCE, to=State.CHECKING),
        # It rests, so that a round is seen to begin before it is seen to end.
        State.CHECKING: Ask(
            Place.SOURCE,
            "checks",
            Verb.CHECK,
            done=State.APPROVED,
            rejected=State.REJECTED,
            patience=POOLED,
            deadline_s=EXPIRES_S,
            rests=True,
        ),
        # From here on all is one transaction, and what was approved does not expire.
        State.APPROVED: Ask(
            Place.SOURCE,
            "allowance",
            Verb.CHECK,
            done=State.DEBITING,
            rejected=State.CHECKING,
            backs_off=True,
            rests=True,
        ),
        State.DEBITING: Ask(
            Place.SOURCE,
            "source",
            Verb.DEBIT,
            done=State.CREDITING,
            rejected=State.CHECKING,
            backs_off=True,
        ),
        State.CREDITING: Ask(
            Place.IN_FLIGHT,
            "target",
            Verb.CREDIT,
            done=State.COMPLETED,
            rejected=State.RETURNING,
            patience=URGENT,
            opens=True,
        ),
        State.RETURNING: Ask(
            Place.IN_FLIGHT, "source", Verb.REFUND, done=State.REJECTED, patience=URGENT
        ),
        State.COMPLETED: End(Place.TARGET),
        State.REJECTED: End(Place.SOURCE),
    },
    roles=frozenset({"allowance", "checks"}),
)
