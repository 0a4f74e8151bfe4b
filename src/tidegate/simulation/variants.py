"""The setup of the workers and the core in one seed."""

import random
from typing import NamedTuple, Self

from tidegate.engine.batch_timer import MANY_CALLERS
from tidegate.flows import FLOWS
from tidegate.simulation.auditor import CORE, LEDGER
from tidegate.simulation.limits_auditor import DailyAllowance
from tidegate.systems.guild import ALLOWANCE, CHECKS


class SeedVariant(NamedTuple):
    """The settings that are drawn for each seed, besides its faults and its behaviour."""

    loops_per_lane: int = 1
    ring_size: int = 100
    scan_s: float = 1.0
    many: int = MANY_CALLERS
    snapshot_records: int = 10**6
    reversible: bool = True  # Whether the core's client declares that it can undo a debit.
    systems: frozenset[str] = frozenset({CORE, LEDGER, ALLOWANCE, CHECKS})  # Served by workers.
    added: str | None = None  # A flow that workers of the older version do not know.
    inbox: bool = False  # Whether workers read requests from the inbox.
    daily: DailyAllowance | None = None  # The daily limits of each owner.
    retires: bool = False  # Whether the core retires ended operations.

    @classmethod
    def from_dice(cls, dice: random.Random) -> Self:
        """Draw the setup of a seed."""
        return cls(
            loops_per_lane=dice.choice((1, 1, 2)),
            ring_size=dice.choice((1, 100, 100)),
            scan_s=dice.choice((1.0, 2.0, 2.0)),
            many=dice.choice((2, MANY_CALLERS)),
            snapshot_records=dice.choice((8, 25, 10**6)),
            reversible=dice.random() < 0.8,
            added=dice.choice(tuple(FLOWS)) if dice.random() < 0.3 else None,
            inbox=dice.random() < 0.3,
            daily=DailyAllowance(dice.randrange(1, 4), 1_000) if dice.random() < 0.15 else None,
        )
