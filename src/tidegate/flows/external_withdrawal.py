"""External withdrawal: money leaves the books, into the owner's OUTSIDE book."""

from enum import StrEnum

from tidegate.core.flow import URGENT, Ask, End, Flow, Pass, Place, Verb


class State(StrEnum):
    REQUESTED = "REQUESTED"
    DEBITING = "DEBITING"
    LEAVING = "LEAVING"
    RETURNING = "RETURNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    RETURNED = "RETURNED"


EXTERNAL_WITHDRAWAL = Flow(
    "external_withdrawal",
    first=State.REQUESTED,
    rows={
        State.REQUESTED: Pass(Place.SOURCE, to=State.DEBITING),
        State.DEBITING: Ask(
            Place.SOURCE, "source", Verb.DEBIT, done=State.LEAVING, rejected=State.FAILED
        ),
        State.LEAVING: Ask(
            Place.IN_FLIGHT,
            "target",
            Verb.CREDIT,
            done=State.COMPLETED,
            rejected=State.RETURNING,
            retry=URGENT,
            opens=True,
        ),
        State.RETURNING: Ask(
            Place.IN_FLIGHT, "source", Verb.REFUND, done=State.RETURNED, retry=URGENT
        ),
        State.COMPLETED: End(Place.TARGET),
        State.FAILED: End(Place.SOURCE),
        State.RETURNED: End(Place.SOURCE),
    },
)
