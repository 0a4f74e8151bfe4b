"""The routes of an owner: make a transfer, look at it, list them, balances, assets."""

import asyncio
import hashlib

import msgspec

from tidegate.core.kind import Transfer
from tidegate.core.money import format_amount
from tidegate.core.refusals import Refusal
from tidegate.core.request import BATCH, TransferRequest, well_formed_cid
from tidegate.engine.gate import CORE
from tidegate.engine.pending_request import Receipt, RequestResult
from tidegate.engine.request_forms import LEDGER
from tidegate.engine.stopped import EngineStopped
from tidegate.service.http import HttpReply, json_reply
from tidegate.service.problem import DETAILS, NOT_FOUND, STATUS, code_of
from tidegate.service.request_types import (
    NO_TRANSFER,
    BatchBody,
    LegacyTransferBody,
    TransferBody,
    TransferShape,
    asset_shape,
    cursor_from,
    failure_of,
    id_from,
    limit_from,
    message_of,
    shape,
    ulid_of,
    word_from,
)
from tidegate.service.routing import Call, RequestRefused, fault_code
from tidegate.store import operator_reads

MAX_BATCH = 1_000
MAX_WAIT_S = 10.0
FIRST_ACCOUNTS = {"funding": "FUNDING", "trading": "SPOT"}
FIRST_STATUS = {"COMMITTED": "committed", "FAILED": "failed", "ROLLED_BACK": "failed"}


async def create(call: Call) -> HttpReply:
    body = call.body(TransferBody)
    said = await _made(call, _wish(call, body), _wait_s(call))
    return _created(call, said)


async def create_batch(call: Call) -> HttpReply:
    """An answer per item, in order; each is made or refused by itself."""
    body = call.body(BatchBody)
    if not 0 < len(body.transfers) <= MAX_BATCH:
        raise RequestRefused(Refusal.INVALID_REQUEST, f"send 1 to {MAX_BATCH} transfers")
    header = _header(call)
    wishes = [
        (_item_wish(item, header, index), _veto(call)) for index, item in enumerate(body.transfers)
    ]
    said = await call.service.gate.transfer_all(wishes, call.owner, _wait_s(call))
    return json_reply({"results": [_item(call, each) for each in said]})


def _item(call: Call, said: RequestResult) -> dict[str, object]:
    if isinstance(said, Refusal):
        call.service.metrics.refusal(said)
    if not isinstance(said, Receipt):
        code = said if isinstance(said, Refusal) else fault_code(said)
        return {"status": STATUS[code], "code": code, "detail": DETAILS.get(code, "")}
    transfer = said.transfer
    shown = shape(call.service.gate, transfer, duplicate=said.duplicate, pending=True)
    if transfer.lane is None and transfer.state != "COMMITTED":
        return {"status": 422, "code": code_of(transfer.error), "transfer": shown}
    status = 202 if transfer.lane else 200 if said.duplicate else 201
    return {"status": status, "transfer": shown}


async def show(call: Call) -> HttpReply:
    return json_reply(shape(call.service.gate, await _own(call)))


async def list_own(call: Call) -> HttpReply:
    query = call.request.parameters
    limit, state = limit_from(query.get("limit")), word_from(query.get("state"))
    before = cursor_from(query["cursor"]) if "cursor" in query else None
    gate = call.service.gate
    found = await operator_reads.list_of_owner(gate.store, call.owner, state, before, limit)
    shown: list[TransferShape] = [shape(gate, transfer) for transfer in found]
    cursor = shown[-1].req_id if len(shown) == limit else None
    return json_reply({"transfers": shown, "next_cursor": cursor})


async def balances(call: Call) -> HttpReply:
    gate, owner = call.service.gate, call.owner
    held = await gate.ledger.balances(gate.store, owner)
    rows = []
    for name, account in gate.accounts.items():
        if account.system != LEDGER or not account.supported:
            continue
        for asset in gate.assets.values():
            for key, balance in held.items():
                if (key.book, key.asset_id) == (account.book, asset.id):
                    amounts = (balance.available, balance.held)
                    rows.append(_balance(name, asset.code, asset.decimals, amounts, balance.status))
    return json_reply({"balances": rows + await _core_balances(call, owner)})


async def _core_balances(call: Call, owner: int) -> list[dict[str, str]]:
    gate = call.service.gate
    if gate.core is None:
        return []
    asked = [
        (name, asset, gate.core.balance(owner, account.book, asset.id))
        for name, account in gate.accounts.items()
        if account.system == CORE and account.supported
        for asset in gate.assets.values()
    ]
    found = await asyncio.gather(*(asking for _, _, asking in asked))
    return [
        _balance(name, asset.code, asset.decimals, (balance.amount, 0), balance.status.name)
        for (name, asset, _), balance in zip(asked, found, strict=True)
        if balance.status.name != "ABSENT"
    ]


def _balance(
    account: str, asset: str, decimals: int, amounts: tuple[int, int], status: str
) -> dict[str, str]:
    return {
        "account": account,
        "asset": asset,
        "available": format_amount(amounts[0], decimals),
        "frozen": format_amount(amounts[1], decimals),
        "status": status,
    }


async def assets(call: Call) -> HttpReply:
    return json_reply({"assets": [asset_shape(a) for a in call.service.gate.assets.values()]})


async def create_legacy(call: Call) -> HttpReply:
    """The older shape: funding and trading, status instead of state."""
    body = call.body(LegacyTransferBody)
    accounts = [FIRST_ACCOUNTS.get(name, name.upper() + "?") for name in (body.source, body.target)]
    wish = TransferRequest(
        accounts[0], accounts[1], body.asset, body.amount, body.cid, body.user_id
    )
    said = await _made(call, _with_key(call, wish), _wait_s(call))
    if isinstance(said, Refusal):
        raise RequestRefused(said)
    transfer = said.transfer
    shown = shape(call.service.gate, transfer)
    status = FIRST_STATUS.get(transfer.state, "pending")
    message = transfer.error or shown.message
    answer = {"req_id": str(transfer.id), "status": status, "message": message}
    return json_reply(answer, 202 if transfer.lane else 200)


async def show_legacy(call: Call) -> HttpReply:
    transfer = await _own(call)
    return json_reply(
        {
            "req_id": str(transfer.id),
            "state": transfer.state.lower(),
            "created_at": transfer.created_us // 1000,
            "message": message_of(transfer),
            "code": failure_of(transfer),
        }
    )


def _wish(call: Call, body: TransferBody) -> TransferRequest:
    wish = TransferRequest(
        body.source, body.target, body.asset, body.amount, body.cid, body.user_id
    )
    return _with_key(call, wish)


def _with_key(call: Call, wish: TransferRequest) -> TransferRequest:
    """The header and the field are one thing; where both are given they must agree."""
    header = _header(call)
    if header is None:
        return wish
    if wish.cid is not None and wish.cid != header:
        raise RequestRefused(Refusal.INVALID_REQUEST, "cid and Idempotency-Key differ")
    return TransferRequest(wish.source, wish.target, wish.asset, wish.amount, header, wish.user_id)


def _header(call: Call) -> str | None:
    header = call.request.header(b"idempotency-key")
    return None if header is None else header.strip().removeprefix('"').removesuffix('"')


def _item_wish(item: TransferBody, header: str | None, index: int) -> TransferRequest:
    """An item without a cid has one made of the batch's key and its index, so that a batch that is
    sent twice is made once.
    """
    wish = TransferRequest(
        item.source, item.target, item.asset, item.amount, item.cid, item.user_id
    )
    if item.cid is not None or header is None:
        return wish
    if not well_formed_cid(header):
        raise RequestRefused(
            Refusal.INVALID_REQUEST, "the Idempotency-Key is not a well-formed key"
        )
    digest = hashlib.sha256(f"{header}\n{index}".encode()).hexdigest()[:32]
    return msgspec.structs.replace(wish, cid=digest, space=BATCH)


async def _made(call: Call, wish: TransferRequest, wait_s: float) -> Receipt | Refusal:
    try:
        said = await call.service.gate.transfer(wish, call.owner, wait_s, _veto(call))
    except EngineStopped as stopped:
        # A repeat with the same cid makes nothing twice.
        keyed = {"retryable": True} if wish.cid is not None else {}
        raise RequestRefused(fault_code(stopped), more=dict(keyed)) from stopped
    return said


def _veto(call: Call) -> Refusal | None:
    """A veto and no refusal: a replay is answered however often it comes."""
    rate = call.service.rate
    slow = rate is None or rate.admits(call.owner)
    return None if slow else Refusal.RATE_LIMIT_EXCEEDED


def _wait_s(call: Call) -> float:
    """`Prefer: wait=N`, within a bound."""
    for wish in (call.request.header(b"prefer") or "").split(","):
        name, _, value = wish.strip().partition("=")
        if name == "wait" and value.isascii() and value.isdigit() and len(value) < 6:
            return min(float(value), MAX_WAIT_S)
    return call.service.wait_s


def _created(call: Call, said: Receipt | Refusal) -> HttpReply:
    if isinstance(said, Refusal):
        raise RequestRefused(said)
    transfer = said.transfer
    if transfer.lane is None and transfer.state != "COMMITTED":
        raise RequestRefused(code_of(transfer.error), _why(transfer), _outcome(said))
    shown = shape(call.service.gate, transfer, duplicate=said.duplicate, pending=True)
    status = 202 if transfer.lane else 200 if said.duplicate else 201
    return json_reply(shown, status, {"Location": f"/api/v1/internal_transfer/{shown.req_id}"})


def _why(transfer: Transfer) -> str:
    return f"the transfer was refused and ended as {transfer.state}; no money has moved"


def _outcome(said: Receipt) -> dict[str, object]:
    id_ = ulid_of(said.transfer.id)
    more: dict[str, object] = {"req_id": id_, "transfer_id": id_, "state": said.transfer.state}
    return more | ({"duplicate": True} if said.duplicate else {})


async def _own(call: Call) -> Transfer:
    """A stranger's transfer and one that is not there get the same answer."""
    id_ = id_from(call.request.named["id"])
    found = await operator_reads.one_or_requested(call.service.gate.store, id_)
    if found is None or found.owner != call.owner or found.flow != "internal_transfer":
        raise RequestRefused(NOT_FOUND, NO_TRANSFER)
    return found
