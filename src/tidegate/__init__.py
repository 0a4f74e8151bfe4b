"""Tidegate moves money between systems that cannot share a transaction: once, or not at all."""

from importlib import import_module
from typing import TYPE_CHECKING

from tidegate.core.answers import Alarm, Answer, Done, Rejected, Unknown, Unreachable
from tidegate.core.flow import Ask, End, Flow, Pass, Place, RetryPolicy, Verb
from tidegate.core.kind import Party, Transfer
from tidegate.core.ports import InboxRequest
from tidegate.core.refusals import Refusal
from tidegate.core.request import CheckedRequest, Request, TransferRequest
from tidegate.core.transfer import Question
from tidegate.engine.alerts import Alert
from tidegate.engine.engine import Engine, EngineParts
from tidegate.engine.pending_request import Receipt

if TYPE_CHECKING:
    from tidegate.app import Setup, all_flows, core_child, open_gate
    from tidegate.engine.gate import Gate
    from tidegate.engine.request_forms import ExternalTransfer
    from tidegate.postgres import Server as EmbeddedPostgres
    from tidegate.store.migrate import migrate

__all__ = [
    "Alarm",
    "Alert",
    "Answer",
    "Ask",
    "CheckedRequest",
    "Done",
    "EmbeddedPostgres",
    "End",
    "Engine",
    "EngineParts",
    "ExternalTransfer",
    "Flow",
    "Gate",
    "InboxRequest",
    "Party",
    "Pass",
    "Place",
    "Question",
    "Receipt",
    "Refusal",
    "Rejected",
    "Request",
    "RetryPolicy",
    "Setup",
    "Transfer",
    "TransferRequest",
    "Unknown",
    "Unreachable",
    "Verb",
    "all_flows",
    "core_child",
    "migrate",
    "open_gate",
]

# Names whose modules need PostgreSQL. They are imported on first use, because the trading core and
# most commands do not need them.
_LAZY = {
    "ExternalTransfer": ("engine.request_forms", "ExternalTransfer"),
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
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, attribute = _LAZY[name]
        return getattr(import_module(f"tidegate.{module}"), attribute)
