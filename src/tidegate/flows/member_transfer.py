"""Member transfer: a member of a guild pays another one at once, or gets the refusal at once.

All its systems are in our own database, so one transaction creates, checks and ends it.
"""

from enum import StrEnum

from tidegate.core.flow import URGENT, Ask, End, Flow, Pass, Place, Verb


class State(StrEnum):
    REQUESTED = "REQUESTED"
    ALLOWING = "ALLOWING"
    DEBITING = "DEBITING"
    CREDITING = "CREDITING"
    RETURNING = "RETURNING"
    COMPLETED = "COMPLETED"
    REFUSED = "REFUSED"


MEMBER_TRANSFER = Flow(
    "member_transfer",
    first=State.REQUESTED,
    rows={
        State.REQUESTED: Pass(Place.SOURCE, to=State.ALLOWING),
        State.ALLOWING: Ask(
            Place.SOURCE, "allowance", Verb.CHECK, done=State.DEBITING, rejected=State.REFUSED
        ),
        State.DEBITING: Ask(
            Place.SOURCE, "source", Verb.DEBIT, done=State.CREDITING, rejected=State.REFUSED
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
            Place.IN_FLIGHT, "source", Verb.REFUND, done=State.REFUSED, retry=URGENT
        ),
        State.COMPLETED: End(Place.TARGET),
        State.REFUSED: End(Place.SOURCE),
    },
    roles=frozenset({"allowance"}),
)
