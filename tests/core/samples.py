"""Values for the tests of the core: transfers, and a flow that does what the shipped do not."""

from enum import StrEnum
from typing import Any
from uuid import UUID

from tidegate.core.answers import NO_EVIDENCE, Alarm, Answer, Done, Rejected, Unknown
from tidegate.core.decide import DecisionContext
from tidegate.core.flow import NEVER_PAGES, Ask, End, Flow, Pass, Place, Verb
from tidegate.core.kind import Party, Transfer, transfer_with
from tidegate.core.transfer import lane_of
from tidegate.flows import FLOWS


class Step(StrEnum):
    ASKED = "ASKED"
    CHECKING = "CHECKING"
    HOLDING = "HOLDING"
    REVIEWING = "REVIEWING"
    CAPTURING = "CAPTURING"
    PAYING = "PAYING"
    REFUNDING = "REFUNDING"
    RELEASING = "RELEASING"
    PAID = "PAID"
    REFUSED = "REFUSED"
    RETURNED = "RETURNED"


# It holds, it loops, a person has an hour to decide, and the target pays a fee.
REVIEWED = Flow(
    "reviewed",
    first=Step.ASKED,
    rows={
        Step.ASKED: Pass(Place.SOURCE, to=Step.CHECKING),
        Step.CHECKING: Ask(
            Place.SOURCE,
            "policy",
            Verb.CHECK,
            done=Step.HOLDING,
            rejected=Step.REFUSED,
            deadline_s=60.0,
            rests=True,
        ),
        Step.HOLDING: Ask(
            Place.SOURCE, "source", Verb.HOLD, done=Step.REVIEWING, rejected=Step.CHECKING
        ),
        Step.REVIEWING: Ask(
            Place.HELD,
            "person",
            Verb.CHECK,
            done=Step.CAPTURING,
            rejected=Step.RELEASING,
            patience=NEVER_PAGES,
            deadline_s=3600.0,
        ),
        Step.CAPTURING: Ask(Place.HELD, "source", Verb.CAPTURE, done=Step.PAYING),
        Step.PAYING: Ask(
            Place.IN_FLIGHT, "target", Verb.CREDIT, done=Step.PAID, rejected=Step.REFUNDING
        ),
        Step.REFUNDING: Ask(Place.IN_FLIGHT, "source", Verb.REFUND, done=Step.RETURNED),
        Step.RELEASING: Ask(Place.HELD, "source", Verb.RELEASE, done=Step.RETURNED),
        Step.PAID: End(Place.TARGET),
        Step.REFUSED: End(Place.SOURCE),
        Step.RETURNED: End(Place.SOURCE),
    },
    roles=frozenset({"policy", "person", "fees"}),
)

ALL_FLOWS = (*FLOWS.values(), REVIEWED)
ASKING = [(flow, str(state)) for flow in ALL_FLOWS for state in flow.rows if flow.ask(state)]
ENDED = [(flow, str(state)) for flow in ALL_FLOWS for state in flow.rows if flow.is_end(state)]

YES = Done({"reference": "r-1"})
NO = Rejected("ACCOUNT_FROZEN", {"status": "FROZEN"})
NOBODY_KNOWS = Unknown("timeout")
ANSWERS: tuple[Answer, ...] = (
    Done(),
    YES,
    NO,
    Rejected("INSUFFICIENT_BALANCE", NO_EVIDENCE),
    NOBODY_KNOWS,
    Unknown("the same key with another amount", Alarm.PAGE),
    Unknown("what we hold as done was never done there", Alarm.HALT),
)

TERMS = DecisionContext()
ID = UUID("01890000-0000-7000-8000-000000000001")


def parties_of(flow: Flow) -> dict[str, Party]:
    """Every role is played by a system of its own name."""
    return {role: Party(f"{role} system", "BOOK", 7) for role in flow.cast}


def resting(flow: Flow, state: str, **fields: Any) -> Transfer:
    """A transfer that rests in a state."""
    parties = parties_of(flow)
    base: dict[str, Any] = {
        "id": ID,
        "owner": 7,
        "flow": flow.name,
        "state": state,
        "lane": lane_of(flow, parties, state),
        "parties": parties,
        "asset_id": 1,
        "amount": 1_000_000,
    }
    return transfer_with(**(base | fields))


def asked(flow: Flow, state: str) -> Ask:
    ask = flow.ask(state)
    assert ask is not None
    return ask
