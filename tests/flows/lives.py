"""What becomes of a transfer when its systems answer as told."""

from tests.core.samples import NO, NOBODY_KNOWS, YES, resting
from tidegate.core.answers import Answer
from tidegate.core.decide import DecisionContext, decide
from tidegate.core.flow import Flow, Place
from tidegate.core.transfer import HistoryEntry

ANSWERS: dict[str, Answer] = {"yes": YES, "no": NO, "silence": NOBODY_KNOWS}


def live(flow: Flow, *answers: str) -> tuple[str, Place, list[HistoryEntry]]:
    """Where a newborn comes to rest, where its money is then, and its history."""
    transfer = resting(flow, flow.arrive(flow.first)[-1])
    history: list[HistoryEntry] = []
    for answer in answers:
        move = decide(flow, transfer, ANSWERS[answer], DecisionContext())
        transfer = move.after
        history += move.entries
    return transfer.state, flow.row(transfer.state).place, history
