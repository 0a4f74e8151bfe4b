"""The routes of the transfer pool: a member pays another, looks at it, lists their own."""

import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from tidegate.core.money import parse_amount
from tidegate.core.ports import StoreFault, StoreUnavailable
from tidegate.core.refusals import Refusal
from tidegate.core.request import MAX_OWNER, well_formed_cid
from tidegate.engine.inbox_reader import NAME as INBOX
from tidegate.service.formats import NO_TRANSFER, id_from, limit_from
from tidegate.service.http import HttpReply, json_reply
from tidegate.service.parameters import MAX_OFFSET, POOL_STATUSES
from tidegate.service.problem import NOT_FOUND
from tidegate.service.reply_types import PoolPage, PoolTransfer
from tidegate.service.request_types import PoolBody
from tidegate.service.routing import Call, RequestRefused
from tidegate.store.pool_schema import STATEMENTS
from tidegate.store.postgres import PostgresStore

ENDS = ("completed", "rejected")
TRIES, PAUSE_S = 3, 0.1
AMOUNT_AT, TIMES_AT = 4, slice(10, 13)  # In a row, whose columns are the fields of PoolTransfer.
MISMATCH = "TG422"  # As the function that creates transfers calls it.


def _store(call: Call) -> PostgresStore:
    gate = call.service.gate
    if not gate.has_economy:
        raise RequestRefused(NOT_FOUND, "the guild economy is not installed here")
    return gate.store


async def create(call: Call) -> HttpReply:
    body = call.body(PoolBody)
    service, owner = call.service, call.owner
    values = _values(call, body)
    # The limit is asked first and used last: a repeat is answered however often it comes.
    values["admitted"] = service.rate is None or service.rate.admits(owner)
    [(values["transfer_id"],)] = await _store(call).run(STATEMENTS["new_id"], {})
    shown = await _created(call, values)
    service.gate.engine.hint([INBOX])
    place = {"Location": f"/api/v1/pool_transfers/{shown.transfer_id}"}
    return json_reply(shown, 200 if shown.status in ENDS else 202, place)


async def _created(call: Call, values: Mapping[str, Any]) -> PoolTransfer:
    """Each try has the same id, so that nothing is paid twice. What was not heard of may have been
    accepted: then the answer is as for one that waits.
    """
    maybe = False
    for attempt in range(TRIES):
        try:
            id_, duplicate = await _create(call, values)
            maybe = True
            return msgspec.structs.replace(await _shown(call, id_), duplicate=duplicate)
        except StoreFault as fault:
            maybe = maybe or (isinstance(fault, StoreUnavailable) and fault.silent)
            # An error of this try says nothing of an earlier one that was not answered.
            if not maybe and (attempt == TRIES - 1 or not fault.retryable):
                raise
        await asyncio.sleep(PAUSE_S)
    return _as_asked(values)


async def _create(call: Call, values: Mapping[str, Any]) -> tuple[UUID, bool]:
    try:
        [(id_, duplicate)] = await _store(call).run(STATEMENTS["create"], values)
    except StoreFault as fault:
        if str(fault).startswith(MISMATCH):
            raise RequestRefused(Refusal.IDEMPOTENCY_MISMATCH) from fault
        raise
    if id_ is None:
        raise RequestRefused(Refusal.RATE_LIMIT_EXCEEDED)
    return id_, duplicate and id_ != values["transfer_id"]


def _as_asked(values: Mapping[str, Any]) -> PoolTransfer:
    id_: UUID = values["transfer_id"]
    at = datetime.fromtimestamp((id_.int >> 80) / 1000, UTC)
    return PoolTransfer(
        id_,
        values["guild_id"],
        values["initiator_id"],
        values["target_id"],
        str(values["amount"]),
        "pending",
        {},
        0,
        1,
        json.loads(values["metadata"]),
        _time(at + timedelta(hours=values["expires_hours"])),
        _time(at),
        _time(at),
        values["cid"],
    )


def _values(call: Call, body: PoolBody) -> dict[str, Any]:
    """Checked in a fixed order. The database would refuse the same with a less clear error."""
    cid = _key(call, body)
    hours = 24.0 if body.expires_hours is None else body.expires_hours
    if body.target_id == call.owner:
        raise RequestRefused(Refusal.SAME_ACCOUNT, "a member cannot pay themselves")
    amount = parse_amount(body.amount, 0)
    if isinstance(amount, Refusal):
        raise RequestRefused(amount)
    if amount > MAX_OWNER:
        raise RequestRefused(Refusal.OVERFLOW)
    return {
        "guild_id": body.guild_id,
        "initiator_id": call.owner,
        "target_id": body.target_id,
        "amount": amount,
        "metadata": json.dumps({} if body.reason is None else {"reason": body.reason}),
        "expires_hours": hours,
        "cid": cid,
    }


def _key(call: Call, body: PoolBody) -> str | None:
    """The header and the field mean the same. If both are given, they must be equal."""
    header = call.request.header(b"idempotency-key")
    if header is not None:
        header = header.strip().removeprefix('"').removesuffix('"')
        if body.cid is not None and body.cid != header:
            raise RequestRefused(Refusal.INVALID_REQUEST, "cid and Idempotency-Key differ")
    cid = body.cid if header is None else header
    if cid is not None and not well_formed_cid(cid):
        raise RequestRefused(
            Refusal.INVALID_REQUEST, "a cid must have 1 to 64 printable ASCII characters"
        )
    return cid


async def show(call: Call) -> HttpReply:
    return json_reply(await _shown(call, id_from(call.request.named["id"])))


async def _shown(call: Call, id_: UUID) -> PoolTransfer:
    """Another member's transfer gets the same answer as one that does not exist."""
    values = {"transfer_id": id_, "owner": call.owner}
    rows = await _store(call).run(STATEMENTS["show"], values)
    if not rows:
        raise RequestRefused(NOT_FOUND, NO_TRANSFER)
    return _shape(rows[0])


async def list_own(call: Call) -> HttpReply:
    query = call.request.parameters
    limit, status = limit_from(query.get("limit")), query.get("status")
    if status is not None and status not in POOL_STATUSES:
        raise RequestRefused(
            Refusal.INVALID_REQUEST, f"a status is one of {', '.join(POOL_STATUSES)}"
        )
    offset = _number("offset", query.get("offset"), MAX_OFFSET) or 0
    values = {
        "owner": call.owner,
        "guild_id": _number("guild_id", query.get("guild_id"), 10**18 - 1),
        "status": status,
        "limit": limit,
        "offset": offset,
    }
    rows = await _store(call).run(STATEMENTS["own"], values)
    further = offset + limit if len(rows) == limit else None
    return json_reply(PoolPage([_shape(row) for row in rows], further))


def _number(name: str, text: str | None, most: int) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 19 and int(text) <= most):
        raise RequestRefused(Refusal.INVALID_REQUEST, f"{name} is a whole number up to {most}")
    return int(text)


def _shape(row: tuple[Any, ...]) -> PoolTransfer:
    shown: list[Any] = list(row)
    shown[AMOUNT_AT] = str(shown[AMOUNT_AT])
    shown[TIMES_AT] = [_time(at) for at in shown[TIMES_AT]]
    return PoolTransfer(*shown)


def _time(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
