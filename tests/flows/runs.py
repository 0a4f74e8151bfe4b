"""Runs a flow: the state of a transfer after a sequence of answers."""

from tests.core.samples import NO, TIMEOUT, YES, resting
from tidegate.core.answers import Answer
from tidegate.core.decide import DecisionContext, decide
from tidegate.core.flow import Flow, Place
from tidegate.core.transfer import HistoryEntry

ANSWERS: dict[str, Answer] = {"yes": YES, "no": NO, "silence": TIMEOUT}


def after_answers(flow: Flow, *answers: str) -> tuple[str, Place, list[HistoryEntry]]:
    """The state of a new transfer after these answers, the place of its money, its history."""
    transfer = resting(flow, flow.arrive(flow.first)[-1])
    history: list[HistoryEntry] = []
    for answer in answers:
        move = decide(flow, transfer, ANSWERS[answer], DecisionContext())
        transfer = move.after
        history += move.entries
    return transfer.state, flow.row(transfer.state).place, history
