"""Daily limits: how many transfers an owner may make in a UTC day, and how much of each asset."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tidegate.core.ports import MemoryTransaction, SqlTransaction
from tidegate.core.refusals import Refusal
from tidegate.core.request import Request
from tidegate.core.sql import load, numbers

STATEMENTS = load("tidegate.store", "daily_limits.sql")
EVERY_ASSET = 0
TOTALS, DAY_US = "daily_totals", 86_400_000_000

Key = tuple[int, int]


class DailyTotal(NamedTuple):
    transfers: int
    amount: int


class DailyLimits:
    """Checked in the transaction that creates the transfers, so that two batches together cannot
    exceed a limit.
    """

    def __init__(self, transfers: int | None, amounts: Mapping[int, int]) -> None:
        self.transfers = transfers
        self.amounts = amounts

    async def admit(
        self, tx: SqlTransaction, requests: Sequence[Request]
    ) -> Sequence[Refusal | None]:
        if not (keys := _limited(requests)):
            return [None] * len(requests)
        columns = {
            "owners": numbers(owner for owner, _ in keys),
            "assets": numbers(asset for _, asset in keys),
        }
        await tx.post(STATEMENTS["open"], columns)
        rows = await tx.fetch(STATEMENTS["lock"], columns)
        totals = {(row[0], row[1]): DailyTotal(row[2], row[3]) for row in rows}
        verdicts = [self.judge(request, totals) for request in requests]
        after = {
            "counts": numbers(totals[key].transfers for key in keys),
            "amounts": numbers(totals[key].amount for key in keys),
        }
        await tx.post(STATEMENTS["add"], columns | after)
        return verdicts

    def judge(self, request: Request, totals: dict[Key, DailyTotal]) -> Refusal | None:
        """Check one request and add it to the totals, so that the next requests count it too."""
        if request.flow != "internal_transfer":
            return None
        all_assets, asset = _keys(request)
        if self.transfers is not None and totals[all_assets].transfers >= self.transfers:
            return Refusal.DAILY_LIMIT_EXCEEDED
        maximum = self.amounts.get(request.asset_id)
        if maximum is not None and totals[asset].amount + request.amount > maximum:
            return Refusal.DAILY_AMOUNT_EXCEEDED
        for key in (all_assets, asset):
            transfers, amount = totals[key]
            totals[key] = DailyTotal(transfers + 1, amount + request.amount * (key is asset))
        return None


class MemoryDailyLimits:
    """The in-memory twin: the same rules over tables in memory."""

    def __init__(self, transfers: int | None, amounts: Mapping[int, int]) -> None:
        self._rules = DailyLimits(transfers, amounts)

    async def admit(
        self, tx: MemoryTransaction, requests: Sequence[Request]
    ) -> Sequence[Refusal | None]:
        if not (keys := _limited(requests)):
            return [None] * len(requests)
        day = (await tx.begun()).at_us // DAY_US
        rows = [(*key, day) for key in keys]
        for row in rows:
            await tx.insert(TOTALS, row, DailyTotal(0, 0))
        await tx.lock(TOTALS, rows)
        totals: dict[Key, DailyTotal] = {key: tx.get(TOTALS, (*key, day)) for key in keys}
        verdicts = [self._rules.judge(request, totals) for request in requests]
        await tx.pause()
        for key in keys:
            tx.put(TOTALS, (*key, day), totals[key])
        return verdicts


def _limited(requests: Sequence[Request]) -> list[Key]:
    """The keys of the rows that count these requests, in the order in which they are locked."""
    return sorted({key for r in requests if r.flow == "internal_transfer" for key in _keys(r)})


def _keys(request: Request) -> tuple[Key, Key]:
    return (request.owner, EVERY_ASSET), (request.owner, request.asset_id)
