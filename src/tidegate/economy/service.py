"""Members pay each other: at once, or through the pool as soon as they may."""

import asyncio
import json
import os
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Self, Unpack
from uuid import UUID

from psycopg_pool import AsyncConnectionPool

from tidegate.app import open_gate
from tidegate.core.kind import Transfer
from tidegate.core.refusals import Refusal
from tidegate.core.request import GUILD, Request
from tidegate.economy.address import setup_of
from tidegate.economy.batched_creation import BatchedCreation
from tidegate.economy.errors import InvalidTransfer, TransferNotFound, TransferUnavailable, error_of
from tidegate.economy.gateway import (
    STATEMENTS,
    PendingTransfer,
    PendingTransferGateway,
    PoolTransferRequest,
    words_of,
)
from tidegate.engine.gate import Gate
from tidegate.engine.pending_request import Receipt
from tidegate.engine.request_forms import issue
from tidegate.engine.stopped import EngineStopped
from tidegate.systems.guild import CHECKS, POINT, payment

ENABLED = "TRANSFER_EVENT_POOL_ENABLED"
YES = ("1", "true", "yes", "on")
MAX_ID = 2**63  # What a bigint holds.


@dataclass(frozen=True, slots=True)
class TransferResult:
    """A transfer that was made."""

    transfer_id: UUID
    guild_id: int
    initiator_id: int
    target_id: int
    amount: int
    initiator_balance: int
    target_balance: int
    metadata: dict[str, object] = field(default_factory=dict)


class TransferService:
    """Synchronous by default; with the pool, `transfer_currency` gives an id and returns.

    In synchronous mode the first call starts an engine, which `close` ends.
    """

    def __init__(
        self, pool: AsyncConnectionPool[Any], *, event_pool_enabled: bool | None = None
    ) -> None:
        if event_pool_enabled is None:
            event_pool_enabled = os.environ.get(ENABLED, "").lower() in YES
        self.pool = pool
        self.event_pool_enabled = event_pool_enabled
        self.gateway = PendingTransferGateway()
        self._entrance = BatchedCreation(pool, self.gateway)
        self._opening = asyncio.Lock()
        self._gate: Gate | None = None
        self._running = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        self._gate = None
        await self._running.aclose()

    async def transfer_currency(self, **wish: Unpack[PoolTransferRequest]) -> UUID | TransferResult:
        """The transfer's id in the pool; or, at once, what came of it, or a TransferError."""
        _check(wish)
        if self.event_pool_enabled:
            return await self._entrance.create(wish)
        return await self._pay(wish)

    async def issue_currency(
        self, guild_id: int, member_id: int, amount: int, cid: str | None = None
    ) -> None:
        """Points come into being, once per cid, and the guild's books say how many there are.

        What an account does not take waits in the guild's suspense book, and its «no» is raised.
        """
        for name, value in (("guild_id", guild_id), ("member_id", member_id), ("amount", amount)):
            _whole(name, value)
        gate = await self._open()
        said = await _request_of(gate, issue(guild_id, member_id, amount, cid))
        if isinstance(said, Refusal):
            raise error_of(said)
        if said.transfer.state != "COMPLETED":
            raise error_of(said.transfer.error or "", said.transfer.id)

    async def get_transfer_status(self, transfer_id: UUID) -> PendingTransfer:
        """As it stands in the pool; TransferNotFound if the pool never had it."""
        async with self.pool.connection() as connection:
            found = await self.gateway.get_pending_transfer(connection, transfer_id)
        if found is None:
            raise TransferNotFound("the pool has no such transfer", transfer_id)
        return found

    async def _pay(self, wish: PoolTransferRequest) -> TransferResult:
        gate = await self._open()
        guild, initiator, target = wish["guild_id"], wish["initiator_id"], wish["target_id"]
        parties = {r: p for r, p in payment(guild, initiator, target).items() if r != CHECKS}
        words, cid = words_of(wish), wish.get("cid")
        request = Request(
            guild,
            "member_transfer",
            parties,
            POINT,
            wish["amount"],
            None if cid is None else f"{initiator}:{cid}",
            detail={"metadata": json.dumps(words, sort_keys=True)} if words else {},
            space=GUILD,
        )
        said = await _request_of(gate, request)
        if isinstance(said, Refusal):
            raise error_of(said)
        transfer = said.transfer
        if transfer.lane is not None:
            raise TransferUnavailable("it is on its way; ask again with its cid", transfer.id)
        if transfer.state != "COMPLETED":
            raise error_of(transfer.error or "", transfer.id)
        return await _result(gate, transfer, wish)

    async def _open(self) -> Gate:
        async with self._opening:
            if self._gate is not None and self._gate.engine.died.done():
                await self.close()  # Whoever met its death was told. Go on with a new one.
            if self._gate is None:
                setup = await setup_of(self.pool)
                self._gate = await self._running.enter_async_context(open_gate(setup))
            return self._gate


async def _request_of(gate: Gate, request: Request) -> Receipt | Refusal:
    try:
        return await gate.engine.transfer(request)
    except EngineStopped as stopped:
        raise TransferUnavailable(f"{stopped}; ask again with its cid") from stopped


def _check(wish: PoolTransferRequest) -> None:
    """What can be refused without asking anybody."""
    for name in ("guild_id", "initiator_id", "target_id", "amount"):
        _whole(name, wish[name])
    if wish["initiator_id"] == wish["target_id"]:
        raise InvalidTransfer("nobody pays themselves")


def _whole(name: str, value: object) -> None:
    if type(value) is not int or not 0 < value < MAX_ID:
        raise InvalidTransfer(f"{name} must be a whole number from 1 on, not {value!r}")


async def _result(gate: Gate, transfer: Transfer, wish: PoolTransferRequest) -> TransferResult:
    rows = await gate.store.run(STATEMENTS["balances_after"], {"transfer_id": transfer.id})
    after = dict(rows)
    return TransferResult(
        transfer.id,
        wish["guild_id"],
        wish["initiator_id"],
        wish["target_id"],
        transfer.amount,
        after["debit"],
        after["credit"],
        words_of(wish),
    )
