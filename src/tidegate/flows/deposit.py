"""Deposit: money enters the books from outside.

Each owner has an OUTSIDE book. Its balance is minus the money that the owner brought in, so that
the books of an owner and the owner's money in flight sum to zero. Money that has arrived cannot be
sent back automatically: if the account refuses it, it is credited to the owner's suspense book.
"""

from enum import StrEnum

from tidegate.core.flow import URGENT, Ask, End, Flow, Pass, Place, Verb


class State(StrEnum):
    ARRIVED = "ARRIVED"
    ENTERING = "ENTERING"
    CREDITING = "CREDITING"
    SUSPENDING = "SUSPENDING"
    COMPLETED = "COMPLETED"
    SUSPENDED = "SUSPENDED"


DEPOSIT = Flow(
    "deposit",
    first=State.ARRIVED,
    rows={
        State.ARRIVED: Pass(Place.SOURCE, to=State.ENTERING),
        State.ENTERING: Ask(Place.SOURCE, "source", Verb.DEBIT, done=State.CREDITING, opens=True),
        State.CREDITING: Ask(
            Place.IN_FLIGHT,
            "target",
            Verb.CREDIT,
            done=State.COMPLETED,
            rejected=State.SUSPENDING,
            retry=URGENT,
            opens=True,
        ),
        State.SUSPENDING: Ask(
            Place.IN_FLIGHT,
            "suspense",
            Verb.CREDIT,
            done=State.SUSPENDED,
            retry=URGENT,
            opens=True,
        ),
        State.COMPLETED: End(Place.TARGET),
        State.SUSPENDED: End(Place.SUSPENSE),
    },
)
