"""The transfer in two steps, as every peer does it: each step is idempotent under its key."""

from uuid import UUID

from bench.literal import DEPOSIT, WITHDRAW
from bench.rail import Core, Sql
from bench.spec import ASSET
from bench.traffic import Order
from tidegate.core.flow import Verb


class Steps:
    """What moves the money. The order of the steps, and that both happen, is the peer's affair."""

    def __init__(self, sql: Sql, core: Core) -> None:
        self._sql, self._core = sql, core

    async def withdraw(self, id_: UUID, order: Order) -> bool:
        if order.inward:
            return await self._funding(WITHDRAW, id_, order)
        return await self._core.ask(id_, Verb.DEBIT, order.owner, order.amount)

    async def deposit(self, id_: UUID, order: Order) -> bool:
        if order.inward:
            return await self._core.ask(id_, Verb.CREDIT, order.owner, order.amount)
        return await self._funding(DEPOSIT, id_, order)

    async def _funding(self, statement: str, id_: UUID, order: Order) -> bool:
        [row] = await self._sql.run(statement, id_, order.owner, ASSET, order.amount)
        return bool(row[0])
