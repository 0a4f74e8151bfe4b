"""The service for payments between members: at once, or through the transfer pool."""

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
    metadata_of,
)
from tidegate.engine.gate import Gate
from tidegate.engine.pending_request import Receipt
from tidegate.engine.request_forms import issue
from tidegate.engine.stopped import EngineStopped
from tidegate.systems.guild import CHECKS, POINT, payment

ENABLED = "TRANSFER_EVENT_POOL_ENABLED"
YES = ("1", "true", "yes", "on")
MAX_ID = 2**63  # The limit of a bigint.


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
    """Synchronous by default. With the pool, `transfer_currency` returns an id at once.

    In synchronous mode the first call starts an engine, and `close` stops it.
    """

    def __init__(
        self, pool: AsyncConnectionPool[Any], *, event_pool_enabled: bool | None = None
    ) -> None:
        if event_pool_enabled is None:
            event_pool_enabled = os.environ.get(ENABLED, "").lower() in YES
        self.pool = pool
        self.event_pool_enabled = event_pool_enabled
        self.gateway = PendingTransferGateway()
        self._creation = BatchedCreation(pool, self.gateway)
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

    async def transfer_currency(
        self, **request: Unpack[PoolTransferRequest]
    ) -> UUID | TransferResult:
        """Return the transfer's id in the pool; or, in synchronous mode, its result.

        Raise a TransferError if the transfer is refused.
        """
        _check(request)
        if self.event_pool_enabled:
            return await self._creation.create(request)
        return await self._pay(request)

    async def issue_currency(
        self, guild_id: int, member_id: int, amount: int, cid: str | None = None
    ) -> None:
        """Create points, once per cid. The guild's OUTSIDE book records how many were created.

        If the account refuses them, they are kept in the guild's suspense book, and the refusal is
        raised as a TransferError.
        """
        for name, value in (("guild_id", guild_id), ("member_id", member_id), ("amount", amount)):
            _check_positive(name, value)
        gate = await self._open()
        receipt = await _submit(gate, issue(guild_id, member_id, amount, cid))
        if receipt.transfer.state != "COMPLETED":
            raise error_of(receipt.transfer.error or "", receipt.transfer.id)

    async def get_transfer_status(self, transfer_id: UUID) -> PendingTransfer:
        """Return the pool's record of a transfer. Raise TransferNotFound if it has none."""
        async with self.pool.connection() as connection:
            found = await self.gateway.get_pending_transfer(connection, transfer_id)
        if found is None:
            raise TransferNotFound("the pool has no such transfer", transfer_id)
        return found

    async def _pay(self, pool_request: PoolTransferRequest) -> TransferResult:
        gate = await self._open()
        guild, initiator = pool_request["guild_id"], pool_request["initiator_id"]
        parties = payment(guild, initiator, pool_request["target_id"])
        metadata, cid = metadata_of(pool_request), pool_request.get("cid")
        request = Request(
            guild,
            "member_transfer",
            {role: party for role, party in parties.items() if role != CHECKS},
            POINT,
            pool_request["amount"],
            None if cid is None else f"{initiator}:{cid}",
            detail={"metadata": json.dumps(metadata, sort_keys=True)} if metadata else {},
            space=GUILD,
        )
        transfer = (await _submit(gate, request)).transfer
        if transfer.lane is not None:
            raise TransferUnavailable(
                "the transfer has not ended yet: repeat the request with the same cid", transfer.id
            )
        if transfer.state != "COMPLETED":
            raise error_of(transfer.error or "", transfer.id)
        return await _result(gate, transfer, pool_request)

    async def _open(self) -> Gate:
        async with self._opening:
            if self._gate is not None and self._gate.engine.died.done():
                await self.close()  # Callers of the stopped engine got an error. Start a new one.
            if self._gate is None:
                setup = await setup_of(self.pool)
                self._gate = await self._running.enter_async_context(open_gate(setup))
            return self._gate


async def _submit(gate: Gate, request: Request) -> Receipt:
    """Request a transfer. Raise a TransferError if it is refused or the engine has stopped."""
    try:
        reply = await gate.engine.transfer(request)
    except EngineStopped as stopped:
        raise TransferUnavailable(f"{stopped}; repeat the request with the same cid") from stopped
    if isinstance(reply, Refusal):
        raise error_of(reply)
    return reply


def _check(request: PoolTransferRequest) -> None:
    """Refuse requests that are invalid in themselves."""
    for name in ("guild_id", "initiator_id", "target_id", "amount"):
        _check_positive(name, request[name])
    if request["initiator_id"] == request["target_id"]:
        raise InvalidTransfer("initiator_id and target_id must be different members")


def _check_positive(name: str, value: object) -> None:
    if type(value) is not int or not 0 < value < MAX_ID:
        raise InvalidTransfer(f"{name} must be a positive whole number, not {value!r}")


async def _result(gate: Gate, transfer: Transfer, request: PoolTransferRequest) -> TransferResult:
    rows = await gate.store.run(STATEMENTS["balances_after"], {"transfer_id": transfer.id})
    balances = dict(rows)
    return TransferResult(
        transfer.id,
        request["guild_id"],
        request["initiator_id"],
        request["target_id"],
        transfer.amount,
        balances["debit"],
        balances["credit"],
        metadata_of(request),
    )
