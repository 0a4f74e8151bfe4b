"""Internal transfer: money moves between two accounts of one owner.

`source` and `target` are each a book of the ledger or of the trading core. The two systems cannot
share a transaction, so the money is in flight between their answers.
"""

from enum import StrEnum

from tidegate.core.flow import URGENT, Ask, End, Flow, Pass, Place, Verb


class State(StrEnum):
    INIT = "INIT"
    SOURCE_PENDING = "SOURCE_PENDING"
    SOURCE_DONE = "SOURCE_DONE"
    TARGET_PENDING = "TARGET_PENDING"
    COMPENSATING = "COMPENSATING"
    COMMITTED = "COMMITTED"
    FAILED = "FAILED"
    ROLLED_BACK = "ROLLED_BACK"


INTERNAL_TRANSFER = Flow(
    "internal_transfer",
    first=State.INIT,
    rows={
        State.INIT: Pass(Place.SOURCE, to=State.SOURCE_PENDING),
        State.SOURCE_PENDING: Ask(
            Place.SOURCE, "source", Verb.DEBIT, done=State.SOURCE_DONE, rejected=State.FAILED
        ),
        # The critical state: the money has left the source and has not reached the target.
        State.SOURCE_DONE: Pass(Place.IN_FLIGHT, to=State.TARGET_PENDING),
        State.TARGET_PENDING: Ask(
            Place.IN_FLIGHT,
            "target",
            Verb.CREDIT,
            done=State.COMMITTED,
            rejected=State.COMPENSATING,
            retry=URGENT,
        ),
        # There is no state for a refused refund, because the owner must get the money back.
        State.COMPENSATING: Ask(
            Place.IN_FLIGHT, "source", Verb.REFUND, done=State.ROLLED_BACK, retry=URGENT
        ),
        State.COMMITTED: End(Place.TARGET),
        State.FAILED: End(Place.SOURCE),
        State.ROLLED_BACK: End(Place.SOURCE),
    },
    codes={
        State.INIT: 0,
        State.SOURCE_PENDING: 10,
        State.SOURCE_DONE: 20,
        State.TARGET_PENDING: 30,
        State.COMMITTED: 40,
        State.FAILED: -10,
        State.COMPENSATING: -20,
        State.ROLLED_BACK: -30,
    },
)
