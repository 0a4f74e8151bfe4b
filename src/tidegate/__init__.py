"""Tidegate moves money between systems that cannot share a transaction: once, or not at all."""

from importlib import import_module
from typing import TYPE_CHECKING

from tidegate.core.answers import Alarm, Answer, Done, Rejected, Unknown, Unreachable
from tidegate.core.flow import Ask, End, Flow, Pass, Patience, Place, Verb
from tidegate.core.ports import InboxRequest
from tidegate.core.refusals import Refusal
from tidegate.core.request import Checked, Request, Wish
from tidegate.core.transfer import Party, Question, Transfer
from tidegate.engine.alerts import Alert
from tidegate.engine.births import Receipt
from tidegate.engine.engine import Engine, Parts

if TYPE_CHECKING:
    from tidegate.app import Setup, all_flows, core_child, open_gate
    from tidegate.engine.gate import Crossing, Gate
    from tidegate.postgres import Server as EmbeddedPostgres
    from tidegate.store.migrate import migrate

__all__ = [
    "Alarm",
    "Alert",
    "Answer",
    "Ask",
    "Checked",
    "Crossing",
    "Done",
    "EmbeddedPostgres",
    "End",
    "Engine",
    "Flow",
    "Gate",
    "InboxRequest",
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

# What needs PostgreSQL is loaded when it is asked for: the core and most commands need none of it.
_LATER = {
    "Crossing": ("engine.gate", "Crossing"),
    "EmbeddedPostgres": ("postgres", "Server"),
    "Gate": ("engine.gate", "Gate"),
    "Setup": ("app", "Setup"),
    "all_flows": ("app", "all_flows"),
    "core_child": ("app", "core_child"),
    "migrate": ("store.migrate", "migrate"),
    "open_gate": ("app", "open_gate"),
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, own = _LATER[name]
        return getattr(import_module(f"tidegate.{module}"), own)
