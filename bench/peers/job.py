"""The transfer in two steps, as every peer does it: each step is idempotent under its key.

A payment from member to member is one step, for both are in one database.
"""

from uuid import UUID

from bench.literal import DEPOSIT, WITHDRAW
from bench.rail import Core, Sql
from bench.spec import ASSET, MEMBERS
from bench.traffic import Order
from tidegate.core.flow import Verb

# Both rows are locked in one order: two who pay each other at once would deadlock.
PAY = """WITH pair AS MATERIALIZED (
    SELECT user_id FROM literal.balances_tb
     WHERE user_id IN ($2, $3) AND asset_id = $4 ORDER BY user_id FOR NO KEY UPDATE),
gone AS (
    UPDATE literal.balances_tb SET available = available - $5
     WHERE user_id = $2 AND asset_id = $4 AND available >= $5 AND status = 'ACTIVE'
       AND (SELECT count(*) FROM pair) = 2
    RETURNING available),
come AS (
    UPDATE literal.balances_tb SET available = available + $5
     WHERE user_id = $3 AND asset_id = $4 AND EXISTS (SELECT FROM gone)
    RETURNING available)
INSERT INTO literal.transfer_operations (req_id, op_type, result)
SELECT $1, 'PAY', CASE WHEN EXISTS (SELECT FROM come) THEN 'SUCCESS' ELSE 'FAIL' END
RETURNING result = 'SUCCESS'"""


class Steps:
    """What moves the money. The order of the steps, and that both happen, is the peer's affair."""

    def __init__(self, sql: Sql, core: Core) -> None:
        self._sql, self._core = sql, core

    async def transfer(self, id_: UUID, order: Order, direction: str) -> None:
        if direction == MEMBERS:
            values = (id_, order.owner, order.payee, ASSET, order.amount)
            [row] = await self._sql.run(PAY, *values)
            assert row[0], "the member has enough"
        else:
            assert await self.withdraw(id_, order), "the account has enough"
            assert await self.deposit(id_, order), "the account is open"

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
