"""The result of one seed."""

import hashlib
from collections import Counter
from dataclasses import dataclass, field

import msgspec

from tidegate.core.flow import Edge
from tidegate.simulation.faults import Fault


@dataclass
class SeedResult:
    """The result of one seed. The counters can be added up over seeds."""

    seed: int
    fault: BaseException | None = None
    trace: list[tuple[float, str, str]] = field(default_factory=list)
    transfers: int = 0
    refused: int = 0  # Requests that never became a transfer.
    edges: Counter[tuple[str, Edge]] = field(default_factory=Counter)
    faults: Counter[tuple[str, Fault]] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)  # What happened besides faults.
    liveness_s: float = 0.0  # How long it took after the faults until all transfers had ended.
    steps: int = 0

    def hash(self) -> str:
        """A hash of the trace. It is the same in every run of the seed."""
        return hashlib.sha256(msgspec.msgpack.encode(self.trace)).hexdigest()
