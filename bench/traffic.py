"""Which transfers are asked for: the same for all who do them."""

import random
from typing import NamedTuple

from bench.spec import GUILD, INWARD, MIXED, Spec

TOO_MUCH = 10**24  # More than any account holds, in smallest units.
SEED = 7


class Order(NamedTuple):
    owner: int
    inward: bool  # FUNDING → SPOT; else the other way.
    amount: int
    cid: str

    @property
    def payee(self) -> int:
        """Another member of the same guild."""
        guild, place = divmod(self.owner - 1, GUILD)
        return guild * GUILD + (place + self.amount % (GUILD - 1) + 1) % GUILD + 1


class Traffic:
    """Orders of random owners, as a case wants them. Their cids are unique."""

    def __init__(self, spec: Spec, owners: list[int] | None = None) -> None:
        self._dice = random.Random(SEED)
        self._owners = owners or range(1, spec.accounts + 1)
        self._direction, self._refusals = spec.direction, spec.refusals

    def order(self, number: int) -> Order:
        inward = number % 2 == 0 if self._direction == MIXED else self._direction == INWARD
        refused = self._refusals > 0 and self._dice.random() < self._refusals
        amount = TOO_MUCH if refused else 1 + number % 100
        return Order(self._dice.choice(self._owners), inward, amount, f"bench-{number}")
