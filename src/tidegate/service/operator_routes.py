"""The routes of those who answer for the money: deposits, brakes, searches, histories."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

import msgspec

from tidegate.core import wire
from tidegate.core.account import Account
from tidegate.core.kind import Transfer
from tidegate.core.money import format_amount, parse_amount
from tidegate.core.ports import MAX_HALTS, Outage
from tidegate.core.refusals import Refusal
from tidegate.core.request import MAX_OWNER
from tidegate.engine import resolution
from tidegate.engine.audit import Audit
from tidegate.engine.pending_request import Receipt
from tidegate.engine.request_forms import LEDGER, ExternalTransfer
from tidegate.service.http import HttpReply, json_reply
from tidegate.service.problem import NOT_FOUND, code_of
from tidegate.service.request_types import (
    NO_TRANSFER,
    AssetBody,
    ExternalTransferBody,
    ReasonBody,
    ResolveBody,
    ResumeBody,
    StatusBody,
    asset_of,
    asset_shape,
    cursor_from,
    halt_shape,
    id_from,
    limit_from,
    time_of,
    ulid_of,
    word_from,
)
from tidegate.service.routing import Call, RequestRefused
from tidegate.service.shared_memory import SharedAuditProgress
from tidegate.store import operator_reads, resolutions
from tidegate.store.resolutions import Proposal
from tidegate.systems.ledger import LedgerStatus

MAX_REASON = 500
PROGRESS_EVERY_S = 0.2
STUCK_DIGITS = 9  # Thirty years, in seconds.


async def deposit(call: Call) -> HttpReply:
    body = call.body(ExternalTransferBody)
    crossing = ExternalTransfer(body.account, body.asset, body.amount, body.cid)
    return _crossed(call, await call.service.gate.deposit(crossing, body.user_id))


async def withdraw(call: Call) -> HttpReply:
    body = call.body(ExternalTransferBody)
    crossing = ExternalTransfer(body.account, body.asset, body.amount, body.cid)
    return _crossed(call, await call.service.gate.withdraw(crossing, body.user_id))


def _crossed(call: Call, said: Receipt | Refusal) -> HttpReply:
    if isinstance(said, Refusal):
        raise RequestRefused(said)
    transfer = said.transfer
    if transfer.state in ("FAILED", "RETURNED"):
        more: dict[str, object] = {"req_id": ulid_of(transfer.id), "state": transfer.state}
        raise RequestRefused(code_of(transfer.error), "the money has not moved", more)
    status = 202 if transfer.lane else 200 if said.duplicate else 201
    return json_reply(shown(call, transfer) | {"duplicate": said.duplicate}, status)


async def account_status(call: Call) -> HttpReply:
    body = call.body(StatusBody)
    gate = call.service.gate
    account, asset = gate.accounts.get(body.account), gate.assets.get(body.asset)
    if account is None:
        raise RequestRefused(Refusal.INVALID_ACCOUNT_TYPE)
    if asset is None:
        raise RequestRefused(Refusal.INVALID_ASSET)
    if not 0 < body.user_id <= MAX_OWNER:
        raise RequestRefused(Refusal.INVALID_REQUEST, "there is no such user")
    if body.status not in LedgerStatus.__members__:
        raise RequestRefused(Refusal.INVALID_REQUEST, "status is ACTIVE, FROZEN or DISABLED")
    if account.system == LEDGER:
        key = Account(body.user_id, account.book, asset.id)
        if not await gate.ledger.set_status(gate.store, key, LedgerStatus(body.status)):
            raise RequestRefused(NOT_FOUND, "there is no such account")
    else:
        assert gate.core is not None
        status = wire.AccountStatus[body.status]
        await gate.core.set_status(body.user_id, account.book, asset.id, status)
    return json_reply(msgspec.structs.asdict(body))


async def set_asset(call: Call) -> HttpReply:
    body = call.body(AssetBody)
    gate = call.service.gate
    asset = gate.assets.get(call.request.named["code"])
    if asset is None:
        raise RequestRefused(NOT_FOUND, "there is no such asset")
    if body.status not in (None, "ACTIVE", "SUSPENDED"):
        raise RequestRefused(Refusal.INVALID_REQUEST, "status is ACTIVE or SUSPENDED")
    minimum = _amount(body.min_transfer_amount, asset.decimals)
    maximum = _amount(body.max_transfer_amount or None, asset.decimals)
    lowest = minimum or asset.min_transfer_amount
    highest = None if body.max_transfer_amount == "" else maximum or asset.max_transfer_amount
    if highest is not None and highest < lowest:
        raise RequestRefused(Refusal.INVALID_REQUEST, "the maximum is below the minimum")
    change = operator_reads.AssetChange(
        asset.code,
        body.status,
        body.internal_transfer_enabled,
        minimum,
        maximum,
        body.max_transfer_amount == "",
    )
    await operator_reads.set_asset(gate.store, change)
    await gate.refresh_assets()
    return json_reply(asset_shape(gate.assets[asset.code]))


def _amount(text: str | None, decimals: int) -> int | None:
    amount = None if text is None else parse_amount(text, decimals)
    if isinstance(amount, Refusal):
        raise RequestRefused(amount)
    return amount


async def search(call: Call) -> HttpReply:
    query = call.request.parameters
    limit = limit_from(query.get("limit"))
    before = cursor_from(query.get("cursor"))
    store = call.service.gate.store
    if "stuck_s" in query:
        stuck_s = _number("stuck_s", query["stuck_s"], STUCK_DIGITS)
        flows = call.service.gate.engine.context.flows.values()
        found = await operator_reads.stuck(store, flows, stuck_s, before, limit)
    else:
        owner = _number("owner", query["owner"]) if "owner" in query else None
        flow, state = word_from(query.get("flow")), word_from(query.get("state"))
        wanted = operator_reads.Search(owner, flow, state)
        found = await operator_reads.search(store, wanted, before, limit)
    rows = [shown(call, transfer) for transfer in await _as_they_wait(call, found)]
    return json_reply({"transfers": rows, "next_cursor": _cursor(found, limit)})


async def _as_they_wait(call: Call, found: Sequence[Transfer]) -> Sequence[Transfer]:
    """With the attempts and the reason of an unreachable system, which no row of theirs has."""
    if all(transfer.lane is None for transfer in found):
        return found
    outages = {outage.lane: outage for outage in await call.service.gate.store.outages()}
    return [_waiting(t, outages[t.lane]) if t.lane in outages else t for t in found]


def _waiting(transfer: Transfer, outage: Outage) -> Transfer:
    probes = outage.probes_since(transfer.updated_us)
    error = f"unreachable: {outage.reason}"
    return transfer.but(retries=transfer.retries + probes, error=error)


def _cursor(found: Sequence[Transfer], limit: int) -> str | None:
    return ulid_of(found[-1].id) if len(found) == limit else None


def _number(name: str, text: str, digits: int = 18) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= digits):
        raise RequestRefused(Refusal.INVALID_REQUEST, f"{name} must be a whole number")
    return int(text)


def shown(call: Call, transfer: Transfer) -> dict[str, object]:
    """A transfer as an operator sees it: everything but the hash."""
    asset = asset_of(call.service.gate.assets, transfer.asset_id)
    return {
        "req_id": ulid_of(transfer.id),
        "user_id": transfer.owner,
        "flow": transfer.flow,
        "state": transfer.state,
        "lane": transfer.lane,
        "asset": asset.code,
        "amount": format_amount(transfer.amount, asset.decimals),
        "parties": {role: f"{p.system}/{p.book}/{p.owner}" for role, p in transfer.parties.items()},
        "cid": transfer.cid,
        "version": transfer.version,
        "attempts": transfer.attempts,
        "retries": transfer.retries,
        "paged": transfer.paged,
        "error": transfer.error,
        "created_at": time_of(transfer.created_us),
        "updated_at": time_of(transfer.updated_us),
    }


async def _found(call: Call) -> Transfer:
    id_: UUID = id_from(call.request.named["id"])
    found = await operator_reads.one(call.service.gate.store, id_)
    if found is None:
        raise RequestRefused(NOT_FOUND, NO_TRANSFER)
    return found


async def history(call: Call) -> HttpReply:
    """One transfer with every answer and the attempts that are kept."""
    [transfer] = await _as_they_wait(call, [await _found(call)])
    store = call.service.gate.store
    answers = [
        {
            "version": a.version,
            "path": a.path,
            "verb": a.verb,
            "answer": a.answer,
            "reason": a.reason,
            "evidence": a.evidence,
            "actor": a.actor,
            "at": time_of(a.at_us),
            "hash": a.hash,
        }
        for a in await operator_reads.history(store, transfer.id)
    ]
    attempts = [
        {"version": a.version, "retry": a.retry, "reason": a.reason, "at": time_of(a.at_us)}
        for a in await operator_reads.attempts(store, transfer.id)
    ]
    return json_reply({"transfer": shown(call, transfer), "history": answers, "attempts": attempts})


async def retry_now(call: Call) -> HttpReply:
    transfer = await _found(call)
    if transfer.lane is None:
        raise RequestRefused(Refusal.INVALID_REQUEST, "this transfer has ended")
    gate = call.service.gate
    await gate.store.release([transfer])
    # If only another process has the system, its next scan finds what was released.
    if transfer.lane in gate.engine.lanes:
        gate.engine.lanes[transfer.lane].wake()
    return json_reply(shown(call, transfer), 202)


async def propose(call: Call) -> HttpReply:
    """One person says what became of a stuck question; nothing happens until another agrees."""
    body, transfer = call.body(ResolveBody), await _found(call)
    gate = call.service.gate
    if transfer.flow not in gate.engine.context.flows:
        detail = f"this process does not know the flow {transfer.flow}: propose at one that does"
        raise RequestRefused(Refusal.INVALID_REQUEST, detail)
    proposal = Proposal(
        transfer.id,
        body.version,
        body.answer,
        body.reason.strip()[:MAX_REASON],
        body.evidence,
        call.identity.subject,
    )
    said = await resolution.propose(gate, transfer, proposal)
    if isinstance(said, Refusal):
        raise RequestRefused(said, "name the open version, an answer, a reason and evidence")
    return json_reply({"resolution": said, "req_id": ulid_of(transfer.id)}, 201)


async def confirm(call: Call) -> HttpReply:
    """The second person. The system is asked first to make a «no» true."""
    gate = call.service.gate
    number = _number("the resolution", call.request.named["id"])
    found = await resolutions.find(gate.store, number)
    if found is None:
        raise RequestRefused(NOT_FOUND, "there is no such resolution")
    if found.proposal.proposed_by == call.identity.subject:
        raise RequestRefused(Refusal.FORBIDDEN, "a second person must confirm")
    if found.outcome is not None:
        raise RequestRefused(Refusal.INVALID_REQUEST, f"it is closed already: {found.outcome}")
    outcome = await resolution.confirm(gate, found, call.identity.subject)
    transfer = await operator_reads.one(gate.store, found.proposal.transfer_id)
    assert transfer is not None, "it was there when it was resolved"
    return json_reply(
        {"resolution": found.id, "outcome": outcome, "transfer": shown(call, transfer)}
    )


async def halt(call: Call) -> HttpReply:
    reason = _reason(call.body(ReasonBody))
    store = call.service.gate.store
    number = await store.halt(reason, call.identity.subject)
    in_force = [halt_shape(halt) for halt in await store.halts()]
    return json_reply({"halted": bool(in_force), "halt": number, "halts": in_force})


async def halts(call: Call) -> HttpReply:
    in_force = [halt_shape(halt) for halt in await call.service.gate.store.halts()]
    return json_reply({"halted": bool(in_force), "halts": in_force})


async def resume(call: Call) -> HttpReply:
    """End the halts named, or all. Money moves again when none is left."""
    body = call.body(ResumeBody)
    reason, named = _reason(body), body.halts
    if named is not None and not (
        0 < len(named) <= MAX_HALTS and all(0 < number < 2**63 for number in named)
    ):
        raise RequestRefused(
            Refusal.INVALID_REQUEST, f"halts are 1 to {MAX_HALTS} numbers of halts"
        )
    store = call.service.gate.store
    ended = await store.resume(reason, call.identity.subject, named)
    left = [halt_shape(halt) for halt in await store.halts()]
    return json_reply({"halted": bool(left), "ended": list(map(halt_shape, ended)), "halts": left})


def _reason(body: ReasonBody | ResumeBody) -> str:
    reason = body.reason.strip()
    if not 0 < len(reason) <= MAX_REASON:
        raise RequestRefused(Refusal.INVALID_REQUEST, f"a reason of 1 to {MAX_REASON} characters")
    return reason


async def audit(call: Call) -> HttpReply:
    audit = call.service.audit
    if audit is None:
        raise RequestRefused(NOT_FOUND, "no audit runs here")
    full = call.request.parameters.get("full", "true") != "false"
    async with _told(call.service.progress, audit):
        return json_reply(await audit.run(full=full))


@asynccontextmanager
async def _told(progress: SharedAuditProgress | None, audit: Audit) -> AsyncIterator[None]:
    """Tell the other processes of this port: who asks how far it is may reach one of them."""
    if progress is None:
        yield
        return

    async def tell() -> None:
        while True:
            progress.tell(audit.read["transfers"])
            await asyncio.sleep(PROGRESS_EVERY_S)

    telling = asyncio.create_task(tell())
    try:
        yield
    finally:
        telling.cancel()
        progress.tell(audit.read["transfers"])


async def audit_progress(call: Call) -> HttpReply:
    """How far the audit under way has come, or how much the last one has read."""
    audit, progress = call.service.audit, call.service.progress
    if audit is None:
        raise RequestRefused(NOT_FOUND, "no audit runs here")
    told = None if progress is None else progress.heard()
    read = audit.read["transfers"] if told is None else told
    about = await operator_reads.about_how_many(call.service.gate.store)
    return json_reply({"read": read, "of_about": about})
