"""Access to the table of the pool: create, read and list transfers, and change their metadata."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NotRequired, TypedDict, Unpack
from uuid import UUID

import psycopg
from psycopg.rows import dict_row

from tidegate.core.sql import load
from tidegate.economy.errors import DifferentTransfer, InvalidTransfer

STATEMENTS = load("tidegate.economy", "economy.sql")
STATUSES = ("pending", "checking", "approved", "completed", "rejected")
EXPIRES_HOURS = 24.0
MISMATCH = "TG422"  # The SQLSTATE for a cid that was used for another transfer.


class PoolTransferRequest(TypedDict):
    """A request for a transfer. Ids are those of the guild's platform, amounts are whole points."""

    guild_id: int
    initiator_id: int
    target_id: int
    amount: int
    reason: NotRequired[str | None]
    metadata: NotRequired[Mapping[str, object] | None]
    cid: NotRequired[str | None]  # A repeated cid means the same transfer, made once.
    expires_hours: NotRequired[float]


@dataclass(frozen=True, slots=True)
class PendingTransfer:
    """A row of `economy.pending_transfers`."""

    transfer_id: UUID
    guild_id: int
    initiator_id: int
    target_id: int
    amount: int
    status: str
    checks: Mapping[str, int]
    retry_count: int
    expires_at: datetime
    metadata: Mapping[str, object]
    created_at: datetime
    updated_at: datetime
    round: int
    cid: str | None = None


def metadata_of(request: PoolTransferRequest) -> dict[str, object]:
    """The metadata of a request, with its reason."""
    reason = request.get("reason")
    return {**(request.get("metadata") or {}), **({} if reason is None else {"reason": reason})}


def values_of(request: PoolTransferRequest) -> dict[str, object]:
    """The column values of a request."""
    return {
        "guild_id": request["guild_id"],
        "initiator_id": request["initiator_id"],
        "target_id": request["target_id"],
        "amount": request["amount"],
        "metadata": json.dumps(metadata_of(request)),
        "expires_hours": request.get("expires_hours", EXPIRES_HOURS),
        "cid": request.get("cid"),
    }


class PendingTransferGateway:
    """Every call runs on the caller's connection, and in the caller's transaction if it has one."""

    async def create_pending_transfer(
        self, connection: psycopg.AsyncConnection[Any], **request: Unpack[PoolTransferRequest]
    ) -> UUID:
        try:
            [row] = await _fetch(connection, "create", values_of(request))
        except (psycopg.errors.CheckViolation, psycopg.errors.DataError) as fault:
            raise InvalidTransfer(str(fault).splitlines()[0]) from fault
        except psycopg.Error as fault:
            if fault.sqlstate == MISMATCH:
                raise DifferentTransfer(str(fault).splitlines()[0]) from fault
            raise
        id_: UUID = row["fn_create_pending_transfer"]
        return id_

    async def get_pending_transfer(
        self, connection: psycopg.AsyncConnection[Any], transfer_id: UUID
    ) -> PendingTransfer | None:
        rows = await _fetch(connection, "get", {"transfer_id": transfer_id})
        return PendingTransfer(**rows[0]) if rows else None

    async def list_pending_transfers(
        self,
        connection: psycopg.AsyncConnection[Any],
        guild_id: int,
        status: str | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> list[PendingTransfer]:
        if status is not None and status not in STATUSES:
            raise ValueError(f"status must be one of {', '.join(STATUSES)}, not {status!r}")
        values = {"guild_id": guild_id, "status": status, "limit": limit, "offset": offset}
        return [PendingTransfer(**row) for row in await _fetch(connection, "list", values)]

    async def update_pending_transfer(
        self,
        connection: psycopg.AsyncConnection[Any],
        transfer_id: UUID,
        metadata: Mapping[str, object],
    ) -> bool:
        """Add metadata to a transfer; return False if the transfer does not exist."""
        values = {"transfer_id": transfer_id, "metadata": json.dumps(metadata)}
        [row] = await _fetch(connection, "update", values)
        return bool(row["fn_update_pending_transfer"])


async def create_many(
    connection: psycopg.AsyncConnection[Any], requests: Sequence[Mapping[str, object]]
) -> list[UUID | None]:
    """Create transfers with these values in one statement, all of them or none.

    The id is None if the cid is known already or occurs twice: then nothing was created, and
    `create_pending_transfer` returns the existing transfer or raises the error.
    """
    columns: dict[str, list[Any]] = {name: [r[name] for r in requests] for name in requests[0]}
    # The elements of an array must have one type.
    columns["expires_hours"] = [float(hours) for hours in columns["expires_hours"]]
    rows = await _fetch(connection, "create_many", columns)
    return [row["fn_create_pending_transfers"] for row in rows]


async def _fetch(
    connection: psycopg.AsyncConnection[Any], name: str, values: Mapping[str, object]
) -> list[dict[str, Any]]:
    async with connection.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(STATEMENTS[name], values)
        return await cursor.fetchall()
