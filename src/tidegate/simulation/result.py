"""What one seed came to."""

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from tidegate.core.flow import Edge
from tidegate.simulation.faults import Fault

Meddling: TypeAlias = Counter[str]


@dataclass
class SeedResult:
    """What one seed came to. Counters add up over seeds."""

    seed: int
    fault: BaseException | None = None
    trace: list[tuple[float, str, str]] = field(default_factory=list)
    transfers: int = 0
    refused: int = 0  # Requests that never became one.
    edges: Counter[tuple[str, Edge]] = field(default_factory=Counter)
    faults: Counter[tuple[str, Fault]] = field(default_factory=Counter)
    meddling: Meddling = field(default_factory=Counter)
    liveness_s: float = 0.0
    steps: int = 0

    def hash(self) -> str:
        """Of everything that happened, in order: the same in every run of the seed."""
        return hashlib.sha256(msgspec.msgpack.encode(self.trace)).hexdigest()
