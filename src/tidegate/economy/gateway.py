"""The pool's table as Python sees it: create, read, list, and change the words about a transfer."""

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
MISMATCH = "TG422"  # As the function that creates transfers calls it.


class PoolTransferRequest(TypedDict):
    """What a caller asks for. Ids are those of the guild's platform, amounts whole points."""

    guild_id: int
    initiator_id: int
    target_id: int
    amount: int
    reason: NotRequired[str | None]
    metadata: NotRequired[Mapping[str, object] | None]
    cid: NotRequired[str | None]  # The same cid twice is the same transfer, made once.
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


def words_of(wish: PoolTransferRequest) -> dict[str, object]:
    """What is kept of a wish besides the money."""
    reason = wish.get("reason")
    return {**(wish.get("metadata") or {}), **({} if reason is None else {"reason": reason})}


def values_of(wish: PoolTransferRequest) -> dict[str, object]:
    """The columns of a wish."""
    return {
        "guild_id": wish["guild_id"],
        "initiator_id": wish["initiator_id"],
        "target_id": wish["target_id"],
        "amount": wish["amount"],
        "metadata": json.dumps(words_of(wish)),
        "expires_hours": wish.get("expires_hours", EXPIRES_HOURS),
        "cid": wish.get("cid"),
    }


class PendingTransferGateway:
    """Every call runs on the caller's connection, in the caller's transaction if there is one."""

    async def create_pending_transfer(
        self, connection: psycopg.AsyncConnection[Any], **wish: Unpack[PoolTransferRequest]
    ) -> UUID:
        try:
            [row] = await _fetch(connection, "create", values_of(wish))
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
            raise ValueError(f"a status is one of {', '.join(STATUSES)}, not {status!r}")
        values = {"guild_id": guild_id, "status": status, "limit": limit, "offset": offset}
        return [PendingTransfer(**row) for row in await _fetch(connection, "list", values)]

    async def update_pending_transfer(
        self,
        connection: psycopg.AsyncConnection[Any],
        transfer_id: UUID,
        metadata: Mapping[str, object],
    ) -> bool:
        """Add words to a transfer; False if there is no such transfer."""
        values = {"transfer_id": transfer_id, "metadata": json.dumps(metadata)}
        [row] = await _fetch(connection, "update", values)
        return bool(row["fn_update_pending_transfer"])


async def create_many(
    connection: psycopg.AsyncConnection[Any], many: Sequence[Mapping[str, object]]
) -> list[UUID | None]:
    """Create transfers with these values in one statement, all of them or none.

    None for one whose cid is known already or comes twice: nothing was created for it, and
    `create_pending_transfer` says what became of it.
    """
    columns: dict[str, list[Any]] = {name: [each[name] for each in many] for name in many[0]}
    # Of one type, as the elements of an array must be.
    columns["expires_hours"] = [float(hours) for hours in columns["expires_hours"]]
    rows = await _fetch(connection, "create_many", columns)
    return [row["fn_create_pending_transfers"] for row in rows]


async def _fetch(
    connection: psycopg.AsyncConnection[Any], name: str, values: Mapping[str, object]
) -> list[dict[str, Any]]:
    async with connection.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(STATEMENTS[name], values)
        return await cursor.fetchall()
