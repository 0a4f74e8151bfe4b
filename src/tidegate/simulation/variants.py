"""How the workers and the core of a seed are set up."""

import random
from typing import NamedTuple, Self

from tidegate.engine.batch_timer import MANY
from tidegate.flows import FLOWS
from tidegate.simulation.auditor import CORE, LEDGER
from tidegate.simulation.limits_auditor import DailyAllowance
from tidegate.systems.guild import ALLOWANCE, CHECKS


class SeedVariant(NamedTuple):
    """What is chosen anew for each seed, besides what fails."""

    loops_per_lane: int = 1
    ring_size: int = 100
    scan_s: float = 1.0
    many: int = MANY
    snapshot_records: int = 10**6
    reversible: bool = True  # Whether the core is said to be able to undo a debit.
    systems: frozenset[str] = frozenset({CORE, LEDGER, ALLOWANCE, CHECKS})  # What workers serve.
    added: str | None = None  # A flow that workers of the older version do not know.
    inbox: bool = False  # Whether workers take requests from the inbox.
    daily: DailyAllowance | None = None  # What an owner may move in a day.

    retires: bool = False  # Whether the core forgets what is over.

    @classmethod
    def thrown(cls, dice: random.Random) -> Self:
        return cls(
            loops_per_lane=dice.choice((1, 1, 2)),
            ring_size=dice.choice((1, 100, 100)),
            scan_s=dice.choice((1.0, 2.0, 2.0)),
            many=dice.choice((2, MANY)),
            snapshot_records=dice.choice((8, 25, 10**6)),
            reversible=dice.random() < 0.8,
            added=dice.choice(tuple(FLOWS)) if dice.random() < 0.3 else None,
            inbox=dice.random() < 0.3,
            daily=DailyAllowance(dice.randrange(1, 4), 1_000) if dice.random() < 0.15 else None,
        )
