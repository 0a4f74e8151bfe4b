"""Deposit: money enters the books from outside.

Each owner has an OUTSIDE book, whose balance is what the owner brought in, negated; so that every
owner's books sum to zero together with what is in flight. Money that has arrived cannot be sent
back by itself: where the account refuses it, it waits in the owner's suspense book.
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
            patience=URGENT,
            opens=True,
        ),
        State.SUSPENDING: Ask(
            Place.IN_FLIGHT,
            "suspense",
            Verb.CREDIT,
            done=State.SUSPENDED,
            patience=URGENT,
            opens=True,
        ),
        State.COMPLETED: End(Place.TARGET),
        State.SUSPENDED: End(Place.SUSPENSE),
    },
)
