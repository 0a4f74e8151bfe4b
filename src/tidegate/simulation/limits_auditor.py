"""Daily limits in the simulation: a worker that applies them, and an auditor that checks them."""

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
    """What each owner may move in a day. A simulation ends within one day."""

    transfers: int
    amount: int


class SimLimits:
    """The daily limits as one worker applies them. A call may fail, or the worker may die."""

    def __init__(self, worker: "SimWorker", daily: DailyAllowance) -> None:
        self._worker = worker
        self._limits = MemoryDailyLimits(daily.transfers, {ASSET: daily.amount})

    async def admit(
        self, tx: "SimTransaction", requests: Sequence[Request]
    ) -> Sequence[Refusal | None]:
        await self._worker.store.reach("admit")
        return await self._limits.admit(tx, requests)


class LimitsAuditor:
    """Counts independently what was created, and which requests were refused."""

    def __init__(self, report: Callable[[str], None], events: dict[str, int]) -> None:
        self._report, self._events = report, events
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
            self._report(f"{transfer.cid} was refused and then created")
        if self.daily is None or transfer.flow != "internal_transfer":
            return
        moved = self._moved.setdefault(transfer.owner, [])
        moved.append(transfer.amount)
        if len(moved) > self.daily.transfers or sum(moved) > self.daily.amount:
            self._report(f"{transfer.owner} moved {moved} in a day, but the limit is {self.daily}")

    def refused(self, request: Request) -> None:
        """A client got a refusal: the transfer must never exist."""
        self._refused.add((request.owner, request.cid, request.amount))
        known = self._created.get((request.owner, request.cid))
        if request.cid and known is not None and known.amount == request.amount:
            self._report(f"{request.cid} was refused after it was created")

    def refused_by_limit(self, request: Request) -> None:
        """A client got a refusal by a daily limit: the limit must really be exceeded."""
        self._events["over the daily limit"] += 1
        self.refused(request)
        moved = self._moved.get(request.owner, [])
        assert self.daily is not None, "refused by a limit that is not set"
        if len(moved) < self.daily.transfers and sum(moved) + request.amount <= self.daily.amount:
            self._report(f"{request.cid} was refused, but with {moved} it fits into {self.daily}")

    def refused_count(self) -> int:
        """How many requests never became a transfer."""
        return len({(owner, cid) for owner, cid, _ in self._refused} - self._created.keys())
