"""The tables of the in-memory store. They survive when a worker is killed."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Hashable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from tidegate.core.ids import NO_FLOOR
from tidegate.core.kind import Transfer
from tidegate.core.transfer import HistoryEntry
from tidegate.flows import FLOWS
from tidegate.store.flow_checks import checksums
from tidegate.store.memory_state import MemoryHalts

if TYPE_CHECKING:
    from tidegate.store.memory_transaction import TwinTransaction


TRANSFERS, HANDOVERS = "transfers", "handovers"


class MemoryRow(NamedTuple):
    """A transfer with the columns that only the store needs."""

    transfer: Transfer
    due_s: float
    deadline_s: float | None
    expires_s: float | None = None  # Expiry of the transfer; replaces the deadlines of states.
    held: bool = False  # Handed over inside a process, so not found as due.


class MemoryAnswer(NamedTuple):
    entry: HistoryEntry
    at_us: int
    hash: bytes


# Both take all fields as one tuple. To call the class instead runs a Python function, which takes
# three times as long.
row_of: Callable[[tuple[Transfer, float, float | None, float | None, bool]], MemoryRow]
row_of = partial(tuple.__new__, MemoryRow)
answered_by: Callable[[tuple[HistoryEntry, int, bytes]], MemoryAnswer] = partial(
    tuple.__new__, MemoryAnswer
)


class MemoryTables:
    """Committed rows, and the transaction that holds each locked row."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[Hashable, Any]] = defaultdict(dict)
        self.holders: dict[tuple[str, Hashable], TwinTransaction] = {}
        self.waiting: dict[tuple[str, Hashable], list[asyncio.Future[None]]] = defaultdict(list)
        self.halts = MemoryHalts()
        self.flows = checksums(FLOWS.values())  # The installed flows.
        self.floor = NO_FLOOR
        self.latest_us = 0  # The latest time that a process has seen.
        self.transactions = self.handovers = 0
        self.committed: set[str] = set()
        self.running: set[str] = set()
