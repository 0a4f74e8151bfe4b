"""Daily limits in the simulation: who keeps them, and who counts whether they were kept."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from tidegate.core.kind import Transfer
from tidegate.core.refusals import Refusal
from tidegate.core.request import Request
from tidegate.simulation.workload import ASSET
from tidegate.store.daily_limits import MemoryDailyLimits
from tidegate.store.memory_tables import TRANSFERS

if TYPE_CHECKING:
    from tidegate.simulation.store import SimTransaction
    from tidegate.simulation.world import SimWorker


class DailyAllowance(NamedTuple):
    """What each owner may move in a day. All of a simulation happens within one."""

    transfers: int
    amount: int


class SimLimits:
    """The admission of one worker, which fails and dies around it."""

    def __init__(self, node: "SimWorker", daily: DailyAllowance) -> None:
        self._node = node
        self._limits = MemoryDailyLimits(daily.transfers, {ASSET: daily.amount})

    async def admit(
        self, tx: "SimTransaction", requests: Sequence[Request]
    ) -> Sequence[Refusal | None]:
        await self._node.store.reach("admit")
        return await self._limits.admit(tx, requests)


class LimitsAuditor:
    """Counts what was created, by itself, and what people were told was not."""

    def __init__(self, blame: Callable[[str], None], meddling: dict[str, int]) -> None:
        self._blame, self._meddling = blame, meddling
        self.daily: DailyAllowance | None = None
        self._created: dict[tuple[int, str | None], Transfer] = {}
        self._ids: set[UUID] = set()
        self._moved: dict[int, list[int]] = {}  # The amounts of each owner.
        self._refused: set[tuple[int, str | None, int]] = set()

    def committed(self, written: Mapping[tuple[str, Any], Any]) -> None:
        for (table, _), row in written.items():
            if table == TRANSFERS and row.transfer.id not in self._ids:
                self._create(row.transfer)

    def _create(self, transfer: Transfer) -> None:
        key = transfer.owner, transfer.cid
        self._ids.add(transfer.id)
        self._created[key] = transfer
        if transfer.cid and (*key, transfer.amount) in self._refused:
            self._blame(f"{transfer.cid} was refused, and then it was made")
        if self.daily is None or transfer.flow != "internal_transfer":
            return
        moved = self._moved.setdefault(transfer.owner, [])
        moved.append(transfer.amount)
        if len(moved) > self.daily.transfers or sum(moved) > self.daily.amount:
            self._blame(f"{transfer.owner} moved {moved} in a day, and the limit is {self.daily}")

    def turn_away(self, wish: Request) -> None:
        """A client is told that it cannot be made: then nothing of it ever moves."""
        self._refused.add((wish.owner, wish.cid, wish.amount))
        known = self._created.get((wish.owner, wish.cid))
        if wish.cid and known is not None and known.amount == wish.amount:
            self._blame(f"{wish.cid} was refused, and it was made before")

    def told(self, wish: Request) -> None:
        """A client is told that a limit does not allow it."""
        self._meddling["over the daily limit"] += 1
        self.turn_away(wish)
        moved = self._moved.get(wish.owner, [])
        assert self.daily is not None, "a limit that nobody has set"
        if len(moved) < self.daily.transfers and sum(moved) + wish.amount <= self.daily.amount:
            self._blame(f"{wish.cid} was refused, and {moved} leaves room for it in {self.daily}")

    def turned_away(self) -> int:
        """How many requests never became a transfer."""
        return len({(owner, cid) for owner, cid, _ in self._refused} - self._created.keys())
