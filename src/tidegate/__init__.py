"""Tidegate moves money between systems that cannot share a transaction: once, or not at all."""

from tidegate.app import Setup, all_flows, core_child, open_gate
from tidegate.core.answers import Alarm, Answer, Done, Rejected, Unknown, Unreachable
from tidegate.core.flow import Ask, End, Flow, Pass, Patience, Place, Verb
from tidegate.core.refusals import Refusal
from tidegate.core.request import Request, Wish
from tidegate.core.transfer import Party, Question, Transfer
from tidegate.engine.alerts import Alert
from tidegate.engine.births import Receipt
from tidegate.engine.engine import Engine, Parts
from tidegate.engine.gate import Crossing, Gate
from tidegate.postgres import Server as EmbeddedPostgres
from tidegate.store.migrate import migrate

__all__ = [
    "Alarm",
    "Alert",
    "Answer",
    "Ask",
    "Crossing",
    "Done",
    "EmbeddedPostgres",
    "End",
    "Engine",
    "Flow",
    "Gate",
    "Parts",
    "Party",
    "Pass",
    "Patience",
    "Place",
    "Question",
    "Receipt",
    "Refusal",
    "Rejected",
    "Request",
    "Setup",
    "Transfer",
    "Unknown",
    "Unreachable",
    "Verb",
    "Wish",
    "all_flows",
    "core_child",
    "migrate",
    "open_gate",
]
