"""The routes of a user: create, show and list transfers; balances; assets."""

import asyncio
import hashlib
from typing import Literal

import msgspec

from tidegate.core.kind import Transfer
from tidegate.core.money import format_amount
from tidegate.core.refusals import Refusal
from tidegate.core.request import BATCH, Asset, TransferRequest, well_formed_cid
from tidegate.engine.gate import CORE
from tidegate.engine.pending_request import Receipt, RequestResult
from tidegate.engine.request_forms import LEDGER
from tidegate.engine.stopped import EngineStopped
from tidegate.service.formats import (
    NO_TRANSFER,
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
from tidegate.service.http import HttpReply, json_reply
from tidegate.service.problem import DETAILS, NOT_FOUND, STATUS, code_of
from tidegate.service.reply_types import (
    AccountBalance,
    AccountBalances,
    Assets,
    BatchItem,
    BatchItems,
    LegacyCreated,
    LegacyTransfer,
    TransferPage,
)
from tidegate.service.request_types import BatchBody, LegacyTransferBody, TransferBody
from tidegate.service.routing import Call, RequestRefused, fault_code
from tidegate.store import operator_reads

MAX_WAIT_S = 10.0
FROM_LEGACY_ACCOUNTS = {"funding": "FUNDING", "trading": "SPOT"}


async def create(call: Call) -> HttpReply:
    body = call.body(TransferBody)
    result = await _create(call, _with_key(call, _request_of(body)), _wait_s(call))
    return _created(call, result)


async def create_batch(call: Call) -> HttpReply:
    """One result per item, in order. Each item is accepted or refused by itself."""
    body, key = call.body(BatchBody), _key_header(call)
    requests = [
        (_item_request(item, key, index), _rate_refusal(call))
        for index, item in enumerate(body.transfers)
    ]
    results = await call.service.gate.transfer_all(requests, call.owner, _wait_s(call))
    return json_reply(BatchItems([_item(call, result) for result in results]))


def _item(call: Call, result: RequestResult) -> BatchItem:
    if isinstance(result, Refusal):
        call.service.metrics.refusal(result)
    if not isinstance(result, Receipt):
        code = result if isinstance(result, Refusal) else fault_code(result)
        return BatchItem(STATUS[code], code, DETAILS.get(code, ""))
    transfer = result.transfer
    shown = shape(call.service.gate, transfer, duplicate=result.duplicate, pending=True)
    if transfer.lane is None and transfer.state != "COMMITTED":
        return BatchItem(422, code_of(transfer.error), transfer=shown)
    return BatchItem(_status_of(result), transfer=shown)


def _status_of(receipt: Receipt) -> int:
    return 202 if receipt.transfer.lane else 200 if receipt.duplicate else 201


async def show(call: Call) -> HttpReply:
    return json_reply(shape(call.service.gate, await _own(call)))


async def list_own(call: Call) -> HttpReply:
    query = call.request.parameters
    limit, state = limit_from(query.get("limit")), word_from(query.get("state"))
    before = cursor_from(query["cursor"]) if "cursor" in query else None
    gate = call.service.gate
    transfers = await operator_reads.list_of_owner(gate.store, call.owner, state, before, limit)
    shown = [shape(gate, transfer) for transfer in transfers]
    return json_reply(TransferPage(shown, shown[-1].req_id if len(shown) == limit else None))


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
                    rows.append(_balance(name, asset, amounts, balance.status))
    return json_reply(AccountBalances(rows + await _core_balances(call, owner)))


async def _core_balances(call: Call, owner: int) -> list[AccountBalance]:
    gate = call.service.gate
    if gate.core is None:
        return []
    reads = [
        (name, asset, gate.core.balance(owner, account.book, asset.id))
        for name, account in gate.accounts.items()
        if account.system == CORE and account.supported
        for asset in gate.assets.values()
    ]
    found = await asyncio.gather(*(read for _, _, read in reads))
    return [
        _balance(name, asset, (balance.amount, 0), balance.status.name)
        for (name, asset, _), balance in zip(reads, found, strict=True)
        if balance.status.name != "ABSENT"
    ]


def _balance(account: str, asset: Asset, amounts: tuple[int, int], status: str) -> AccountBalance:
    available, held = (format_amount(amount, asset.decimals) for amount in amounts)
    return AccountBalance(account, asset.code, available, held, status)


async def assets(call: Call) -> HttpReply:
    return json_reply(Assets([asset_shape(a) for a in call.service.gate.assets.values()]))


async def create_legacy(call: Call) -> HttpReply:
    """The older format: funding and trading as accounts, and a status instead of a state."""
    body = call.body(LegacyTransferBody)
    source, target = (
        FROM_LEGACY_ACCOUNTS.get(name, f"{name.upper()}?") for name in (body.source, body.target)
    )
    request = TransferRequest(source, target, body.asset, body.amount, body.cid, body.user_id)
    result = await _create(call, _with_key(call, request), _wait_s(call))
    if isinstance(result, Refusal):
        raise RequestRefused(result)
    transfer = result.transfer
    message = transfer.error or message_of(transfer)
    created = LegacyCreated(transfer.id, _legacy_status(transfer), message)
    return json_reply(created, 202 if transfer.lane else 200)


def _legacy_status(transfer: Transfer) -> Literal["committed", "pending", "failed"]:
    match transfer.state:
        case "COMMITTED":
            return "committed"
        case "FAILED" | "ROLLED_BACK":
            return "failed"
    return "pending"


async def show_legacy(call: Call) -> HttpReply:
    transfer = await _own(call)
    return json_reply(
        LegacyTransfer(
            transfer.id,
            transfer.state.lower(),
            transfer.created_us // 1000,
            message_of(transfer),
            failure_of(transfer),
        )
    )


def _request_of(body: TransferBody) -> TransferRequest:
    return TransferRequest(
        body.source, body.target, body.asset, body.amount, body.cid, body.user_id
    )


def _with_key(call: Call, request: TransferRequest) -> TransferRequest:
    """The header and the field mean the same. If both are given, they must be equal."""
    header = _key_header(call)
    if header is None:
        return request
    if request.cid is not None and request.cid != header:
        raise RequestRefused(Refusal.INVALID_REQUEST, "cid and Idempotency-Key differ")
    return msgspec.structs.replace(request, cid=header)


def _key_header(call: Call) -> str | None:
    header = call.request.header(b"idempotency-key")
    return None if header is None else header.strip().removeprefix('"').removesuffix('"')


def _item_request(item: TransferBody, header: str | None, index: int) -> TransferRequest:
    """An item without a cid gets one made of the batch's key and its index, so that a batch that
    is sent twice is made once.
    """
    request = _request_of(item)
    if item.cid is not None or header is None:
        return request
    if not well_formed_cid(header):
        raise RequestRefused(
            Refusal.INVALID_REQUEST, "the Idempotency-Key is not a well-formed key"
        )
    digest = hashlib.sha256(f"{header}\n{index}".encode()).hexdigest()[:32]
    return msgspec.structs.replace(request, cid=digest, space=BATCH)


async def _create(call: Call, request: TransferRequest, wait_s: float) -> Receipt | Refusal:
    try:
        return await call.service.gate.transfer(request, call.owner, wait_s, _rate_refusal(call))
    except EngineStopped as stopped:
        # A repeat with the same cid makes nothing twice.
        retryable: dict[str, object] = {} if request.cid is None else {"retryable": True}
        raise RequestRefused(fault_code(stopped), more=retryable) from stopped


def _rate_refusal(call: Call) -> Refusal | None:
    """Holds for new requests only: a request that is known is answered however often it comes."""
    rate = call.service.rate
    admitted = rate is None or rate.admits(call.owner)
    return None if admitted else Refusal.RATE_LIMIT_EXCEEDED


def _wait_s(call: Call) -> float:
    """`Prefer: wait=N`, at most MAX_WAIT_S."""
    for preference in (call.request.header(b"prefer") or "").split(","):
        name, _, value = preference.strip().partition("=")
        if name == "wait" and value.isascii() and value.isdigit() and len(value) < 6:
            return min(float(value), MAX_WAIT_S)
    return call.service.wait_s


def _created(call: Call, result: Receipt | Refusal) -> HttpReply:
    if isinstance(result, Refusal):
        raise RequestRefused(result)
    transfer = result.transfer
    if transfer.lane is None and transfer.state != "COMMITTED":
        raise RequestRefused(code_of(transfer.error), _why(transfer), _outcome(result))
    shown = shape(call.service.gate, transfer, duplicate=result.duplicate, pending=True)
    location = {"Location": f"/api/v1/internal_transfer/{shown.req_id}"}
    return json_reply(shown, _status_of(result), location)


def _why(transfer: Transfer) -> str:
    return f"the transfer was refused and ended as {transfer.state}; no money has moved"


def _outcome(receipt: Receipt) -> dict[str, object]:
    id_ = ulid_of(receipt.transfer.id)
    more: dict[str, object] = {"req_id": id_, "transfer_id": id_, "state": receipt.transfer.state}
    return more | ({"duplicate": True} if receipt.duplicate else {})


async def _own(call: Call) -> Transfer:
    """Another user's transfer gets the same answer as one that does not exist."""
    id_ = id_from(call.request.named["id"])
    found = await operator_reads.one_or_requested(call.service.gate.store, id_)
    if found is None or found.owner != call.owner or found.flow != "internal_transfer":
        raise RequestRefused(NOT_FOUND, NO_TRANSFER)
    return found
