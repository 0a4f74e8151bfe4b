"""The protocol of the specifications as it is printed: a commit per step, a task per transfer.

Written as well as it can be without leaving the protocol: prepared statements, a pool of the size
that suits it, an adapter's balance change and its operation row in one statement, and no read of
the row between two steps.
"""

from uuid import UUID, uuid4

from bench.driving import DONE, REFUSED, Outcome, drive
from bench.rail import Core, Sql, open_core, open_sql
from bench.spec import ASSET, Result, Spec
from bench.traffic import Order, Traffic
from tidegate.core.flow import Verb

INIT, SOURCE_PENDING, SOURCE_DONE, TARGET_PENDING, COMMITTED = 0, 10, 20, 30, 40
FAILED = -10

TABLES = """
CREATE SCHEMA literal;
CREATE TABLE literal.balances_tb (
    user_id   bigint        NOT NULL,
    asset_id  integer       NOT NULL,
    available numeric(39,0) NOT NULL CHECK (available >= 0),
    status    text          NOT NULL DEFAULT 'ACTIVE',
    PRIMARY KEY (user_id, asset_id)
) WITH (fillfactor = 70);
CREATE TABLE literal.transfers_tb (
    req_id        uuid          PRIMARY KEY,
    cid           text,
    user_id       bigint        NOT NULL,
    asset_id      integer       NOT NULL,
    amount        numeric(39,0) NOT NULL,
    transfer_type smallint      NOT NULL,
    state         smallint      NOT NULL DEFAULT 0,
    error_message text,
    retry_count   integer       NOT NULL DEFAULT 0,
    created_at    timestamptz   NOT NULL DEFAULT now(),
    updated_at    timestamptz   NOT NULL DEFAULT now(),
    UNIQUE (user_id, cid)
) WITH (fillfactor = 70);
CREATE INDEX transfers_open ON literal.transfers_tb (state) WHERE state NOT IN (40, -10, -30);
CREATE TABLE literal.transfer_operations (
    req_id  uuid NOT NULL,
    op_type text NOT NULL,
    result  text NOT NULL,
    PRIMARY KEY (req_id, op_type)
);
"""

CREATE = """INSERT INTO literal.transfers_tb (req_id, cid, user_id, asset_id, amount, transfer_type)
VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (user_id, cid) DO NOTHING RETURNING req_id"""
MOVE = """UPDATE literal.transfers_tb SET state = $3, updated_at = now()
WHERE req_id = $1 AND state = $2 RETURNING req_id"""
# The operation row and the balance change stand or fall together; a second run of either fails on
# the key, and the stored result is the answer then.
WITHDRAW = """WITH moved AS (
    UPDATE literal.balances_tb SET available = available - $4
     WHERE user_id = $2 AND asset_id = $3 AND available >= $4 AND status = 'ACTIVE'
    RETURNING available)
INSERT INTO literal.transfer_operations (req_id, op_type, result)
SELECT $1, 'WITHDRAW', CASE WHEN EXISTS (SELECT FROM moved) THEN 'SUCCESS' ELSE 'FAIL' END
RETURNING result = 'SUCCESS'"""
DEPOSIT = """WITH moved AS (
    UPDATE literal.balances_tb SET available = available + $4
     WHERE user_id = $2 AND asset_id = $3 AND status <> 'DISABLED'
    RETURNING available)
INSERT INTO literal.transfer_operations (req_id, op_type, result)
SELECT $1, 'DEPOSIT', CASE WHEN EXISTS (SELECT FROM moved) THEN 'SUCCESS' ELSE 'FAIL' END
RETURNING result = 'SUCCESS'"""


class Literal:
    """The coordinator: every state is committed before the next thing is done."""

    def __init__(self, sql: Sql, core: Core) -> None:
        self._sql, self._core = sql, core

    async def transfer(self, order: Order) -> int:
        """The state at the end. Nothing fails here that would need the recovery worker."""
        req_id = uuid4()
        kind = 1 if order.inward else 2
        created = await self._sql.run(
            CREATE, req_id, order.cid, order.owner, ASSET, order.amount, kind
        )
        assert created, f"{order.cid} was there already"
        await self._move(req_id, INIT, SOURCE_PENDING)
        if not await self._withdraw(req_id, order):
            return await self._move(req_id, SOURCE_PENDING, FAILED)
        await self._move(req_id, SOURCE_PENDING, SOURCE_DONE)
        await self._move(req_id, SOURCE_DONE, TARGET_PENDING)
        deposited = await self._deposit(req_id, order)
        assert deposited, "accounts are open, and no amount is too large for them"
        return await self._move(req_id, TARGET_PENDING, COMMITTED)

    async def _move(self, req_id: UUID, before: int, after: int) -> int:
        moved = await self._sql.run(MOVE, req_id, before, after)
        assert moved, f"somebody else moved {req_id} from {before}"
        return after

    async def _withdraw(self, req_id: UUID, order: Order) -> bool:
        if not order.inward:
            return await self._core.ask(req_id, Verb.DEBIT, order.owner, order.amount)
        return await self.funding(WITHDRAW, req_id, order)

    async def _deposit(self, req_id: UUID, order: Order) -> bool:
        if order.inward:
            return await self._core.ask(req_id, Verb.CREDIT, order.owner, order.amount)
        return await self.funding(DEPOSIT, req_id, order)

    async def funding(self, statement: str, req_id: UUID, order: Order) -> bool:
        [row] = await self._sql.run(statement, req_id, order.owner, ASSET, order.amount)
        return bool(row[0])


async def run(spec: Spec) -> Result:
    traffic = Traffic(spec)
    async with open_sql(spec) as sql, open_core(spec) as core:
        literal = Literal(sql, core)

        async def one(number: int) -> Outcome:
            state = await literal.transfer(traffic.order(number))
            return DONE if state == COMMITTED else REFUSED

        return await drive(spec, one)
