"""Pool transfer: a member of a guild pays another one as soon as all checks allow it.

The checks run in rounds. A transfer that cannot pass yet waits: for a cooldown, for the next day,
for money. The checks reserve nothing. So the allowance is asked once more in the transaction that
moves the money, while the initiator is locked. If it refuses, the next round of checks begins.
"""

from enum import StrEnum

from tidegate.core.flow import URGENT, Ask, End, Flow, Pass, Place, RetryPolicy, Verb

EXPIRES_S = 24 * 3600.0
# Ten pauses: 1 s, 2 s, 4 s … 300 s. Waiting until a known time, such as midnight, is not counted.
POOL_RETRY = RetryPolicy(
    first_s=1.0, cap_s=300.0, page_attempts=None, page_after_s=None, jitter=0.0, max_retries=10
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
        # It rests, so that other programs see a round begin before they see it end.
        State.CHECKING: Ask(
            Place.SOURCE,
            "checks",
            Verb.CHECK,
            done=State.APPROVED,
            rejected=State.REJECTED,
            retry=POOL_RETRY,
            deadline_s=EXPIRES_S,
            rests=True,
        ),
        # From here on everything is one transaction. An approved transfer does not expire.
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
            retry=URGENT,
            opens=True,
        ),
        State.RETURNING: Ask(
            Place.IN_FLIGHT, "source", Verb.REFUND, done=State.REJECTED, retry=URGENT
        ),
        State.COMPLETED: End(Place.TARGET),
        State.REJECTED: End(Place.SOURCE),
    },
    roles=frozenset({"allowance", "checks"}),
)
