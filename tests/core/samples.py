"""Values for the tests of the core: transfers, and a flow with all features of the table."""

from collections.abc import Container
from enum import StrEnum
from typing import Any
from uuid import UUID

from tidegate.core.answers import NO_EVIDENCE, Alarm, Answer, Done, Rejected, Unknown
from tidegate.core.decide import DecisionContext
from tidegate.core.flow import NEVER_PAGES, Ask, End, Flow, Pass, Place, Verb
from tidegate.core.kind import Party, Transfer, transfer_with
from tidegate.core.refusals import Refusal
from tidegate.core.request import Request, fields_refusal, parties_refusal
from tidegate.core.transfer import lane_of
from tidegate.flows import FLOWS


class Review(StrEnum):
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


# It has a hold, a cycle, a check by a person with a deadline of an hour, and a fee.
REVIEWED = Flow(
    "reviewed",
    first=Review.ASKED,
    rows={
        Review.ASKED: Pass(Place.SOURCE, to=Review.CHECKING),
        Review.CHECKING: Ask(
            Place.SOURCE,
            "policy",
            Verb.CHECK,
            done=Review.HOLDING,
            rejected=Review.REFUSED,
            deadline_s=60.0,
            rests=True,
        ),
        Review.HOLDING: Ask(
            Place.SOURCE, "source", Verb.HOLD, done=Review.REVIEWING, rejected=Review.CHECKING
        ),
        Review.REVIEWING: Ask(
            Place.HELD,
            "person",
            Verb.CHECK,
            done=Review.CAPTURING,
            rejected=Review.RELEASING,
            retry=NEVER_PAGES,
            deadline_s=3600.0,
        ),
        Review.CAPTURING: Ask(Place.HELD, "source", Verb.CAPTURE, done=Review.PAYING),
        Review.PAYING: Ask(
            Place.IN_FLIGHT, "target", Verb.CREDIT, done=Review.PAID, rejected=Review.REFUNDING
        ),
        Review.REFUNDING: Ask(Place.IN_FLIGHT, "source", Verb.REFUND, done=Review.RETURNED),
        Review.RELEASING: Ask(Place.HELD, "source", Verb.RELEASE, done=Review.RETURNED),
        Review.PAID: End(Place.TARGET),
        Review.REFUSED: End(Place.SOURCE),
        Review.RETURNED: End(Place.SOURCE),
    },
    roles=frozenset({"policy", "person", "fees"}),
)

ALL_FLOWS = (*FLOWS.values(), REVIEWED)
ASKING = [(flow, str(state)) for flow in ALL_FLOWS for state in flow.rows if flow.ask(state)]
ENDED = [(flow, str(state)) for flow in ALL_FLOWS for state in flow.rows if flow.is_end(state)]

YES = Done({"reference": "r-1"})
NO = Rejected("ACCOUNT_FROZEN", {"status": "FROZEN"})
TIMEOUT = Unknown("timeout")
ANSWERS: tuple[Answer, ...] = (
    Done(),
    YES,
    NO,
    Rejected("INSUFFICIENT_BALANCE", NO_EVIDENCE),
    TIMEOUT,
    Unknown("the same key with another amount", Alarm.PAGE),
    Unknown("what we hold as done was never done there", Alarm.HALT),
)

CONTEXT = DecisionContext()
ID = UUID("01890000-0000-7000-8000-000000000001")


def parties_of(flow: Flow) -> dict[str, Party]:
    """A party for every role, in a system named after the role."""
    return {role: Party(f"{role} system", "BOOK", 7) for role in flow.required_roles}


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


def ask_of(flow: Flow, state: str) -> Ask:
    ask = flow.ask(state)
    assert ask is not None
    return ask


def recheck(request: Request, flow: Flow, local: Container[str]) -> Refusal | None:
    """The checks that every request must pass, because the engine does not trust its callers.

    `local` names the systems in our own database.
    """
    return fields_refusal(request) or parties_refusal(request, flow, local)
