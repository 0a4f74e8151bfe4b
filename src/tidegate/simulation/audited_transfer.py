"""One transfer as the auditor has observed it, and the hash chain of its history."""

import hashlib
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tidegate.core.kind import GENESIS, Transfer
from tidegate.core.transfer import HistoryEntry
from tidegate.simulation.effects import Effects


@dataclass(slots=True)
class AuditedTransfer:
    """One transfer, as the auditor has observed it."""

    transfer: Transfer
    version: int = 0
    head: bytes = GENESIS
    history: tuple[Any, ...] = ()
    effects: Effects = ()
    net: int = 0  # The sum of its effects over all books.
    fee: int = 0  # The amount credited to its fees account.
    since_s: float = 0.0  # When it entered its state.
    tries: int = 0  # How often it was claimed since then.
    refused: bool = False  # The last answer was a Rejected that did not change the state.
    reported: bool = False  # An alert was raised for it in this state.
    overdue: bool = False  # An alert is due in this state.
    # The workers that have committed that it is stuck. Each of them must raise the alert.
    must_report: list[object] = field(default_factory=list)


def chain(head: bytes, transfer: Transfer, entry: HistoryEntry, at_us: int) -> bytes:
    """The hash that an answer must have, computed independently of the engine."""
    answer = (entry.version, entry.path, entry.verb, entry.answer, entry.reason)
    evidence = sorted(entry.evidence.items()) if entry.evidence else []
    row = [f"{transfer.id.int:032x}", transfer.kind.flow, *answer, evidence, entry.actor, at_us]
    return hashlib.sha256(head + msgspec.json.encode(row)).digest()
