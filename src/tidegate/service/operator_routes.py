"""The routes of operators: deposits, withdrawals, halts, searches, histories, audits."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

import msgspec

from tidegate.core import wire
from tidegate.core.account import Account
from tidegate.core.kind import Transfer
from tidegate.core.money import format_amount, parse_amount
from tidegate.core.ports import Outage
from tidegate.core.refusals import Refusal
from tidegate.engine import resolution
from tidegate.engine.audit import Audit
from tidegate.engine.pending_request import Receipt
from tidegate.engine.request_forms import LEDGER, ExternalTransfer
from tidegate.service.formats import (
    NO_TRANSFER,
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
from tidegate.service.http import HttpReply, json_reply
from tidegate.service.parameters import MAX_STUCK_DIGITS
from tidegate.service.problem import NOT_FOUND, code_of
from tidegate.service.reply_types import (
    AccountStatusSet,
    AuditProgressShown,
    ExternalTransferMade,
    HaltAdded,
    HaltList,
    HaltsEnded,
    OperatorPage,
    OperatorTransfer,
    ResolutionConfirmed,
    ResolutionProposed,
    TransferAnswer,
    TransferAttempt,
    TransferHistory,
)
from tidegate.service.request_types import (
    AssetBody,
    ExternalTransferBody,
    ReasonBody,
    ResolveBody,
    ResumeBody,
    StatusBody,
)
from tidegate.service.routing import Call, RequestRefused
from tidegate.service.shared_memory import SharedAuditProgress
from tidegate.store import operator_reads, resolutions
from tidegate.store.resolutions import Proposal
from tidegate.systems.ledger import LedgerStatus

PROGRESS_EVERY_S = 0.2


async def deposit(call: Call) -> HttpReply:
    body = call.body(ExternalTransferBody)
    wanted = ExternalTransfer(body.account, body.asset, body.amount, body.cid)
    return _made(call, await call.service.gate.deposit(wanted, body.user_id))


async def withdraw(call: Call) -> HttpReply:
    body = call.body(ExternalTransferBody)
    wanted = ExternalTransfer(body.account, body.asset, body.amount, body.cid)
    return _made(call, await call.service.gate.withdraw(wanted, body.user_id))


def _made(call: Call, result: Receipt | Refusal) -> HttpReply:
    if isinstance(result, Refusal):
        raise RequestRefused(result)
    transfer, duplicate = result.transfer, result.duplicate
    if transfer.state in ("FAILED", "RETURNED"):
        more: dict[str, object] = {"req_id": ulid_of(transfer.id), "state": transfer.state}
        raise RequestRefused(code_of(transfer.error), "the money has not moved", more)
    status = 202 if transfer.lane else 200 if duplicate else 201
    fields = msgspec.structs.asdict(operator_transfer(call, transfer))
    return json_reply(ExternalTransferMade(**fields, duplicate=duplicate), status)


async def account_status(call: Call) -> HttpReply:
    body = call.body(StatusBody)
    gate = call.service.gate
    account, asset = gate.accounts.get(body.account), gate.assets.get(body.asset)
    if account is None:
        raise RequestRefused(Refusal.INVALID_ACCOUNT_TYPE)
    if asset is None:
        raise RequestRefused(Refusal.INVALID_ASSET)
    if account.system == LEDGER:
        key = Account(body.user_id, account.book, asset.id)
        if not await gate.ledger.set_status(gate.store, key, LedgerStatus(body.status)):
            raise RequestRefused(NOT_FOUND, "there is no such account")
    else:
        assert gate.core is not None
        status = wire.AccountStatus[body.status]
        await gate.core.set_status(body.user_id, account.book, asset.id, status)
    return json_reply(AccountStatusSet(body.user_id, body.account, body.asset, body.status))


async def set_asset(call: Call) -> HttpReply:
    body = call.body(AssetBody)
    gate = call.service.gate
    asset = gate.assets.get(call.request.named["code"])
    if asset is None:
        raise RequestRefused(NOT_FOUND, "there is no such asset")
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
        stuck_s = _number("stuck_s", query["stuck_s"], MAX_STUCK_DIGITS)
        flows = call.service.gate.engine.context.flows.values()
        found = await operator_reads.stuck(store, flows, stuck_s, before, limit)
    else:
        owner = _number("owner", query["owner"]) if "owner" in query else None
        flow, state = word_from(query.get("flow")), word_from(query.get("state"))
        wanted = operator_reads.Search(owner, flow, state)
        found = await operator_reads.search(store, wanted, before, limit)
    rows = [operator_transfer(call, transfer) for transfer in await _with_outages(call, found)]
    return json_reply(OperatorPage(rows, _cursor(found, limit)))


async def _with_outages(call: Call, found: Sequence[Transfer]) -> Sequence[Transfer]:
    """Add the attempts and the reason of an unreachable system, which are not in their rows."""
    if all(transfer.lane is None for transfer in found):
        return found
    outages = {outage.lane: outage for outage in await call.service.gate.store.outages()}
    return [_waiting(t, outages[t.lane]) if t.lane in outages else t for t in found]


def _waiting(transfer: Transfer, outage: Outage) -> Transfer:
    probes = outage.probes_since(transfer.updated_us)
    error = f"unreachable: {outage.reason}"
    return transfer.replace(retries=transfer.retries + probes, error=error)


def _cursor(found: Sequence[Transfer], limit: int) -> str | None:
    return ulid_of(found[-1].id) if len(found) == limit else None


def _number(name: str, text: str, digits: int = 18) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= digits):
        raise RequestRefused(Refusal.INVALID_REQUEST, f"{name} must be a whole number")
    return int(text)


def operator_transfer(call: Call, transfer: Transfer) -> OperatorTransfer:
    """A transfer as operators see it: everything but the hash."""
    asset = asset_of(call.service.gate.assets, transfer.asset_id)
    return OperatorTransfer(
        req_id=ulid_of(transfer.id),
        user_id=transfer.owner,
        flow=transfer.flow,
        state=transfer.state,
        lane=transfer.lane,
        asset=asset.code,
        amount=format_amount(transfer.amount, asset.decimals),
        parties={role: f"{p.system}/{p.book}/{p.owner}" for role, p in transfer.parties.items()},
        cid=transfer.cid,
        version=transfer.version,
        attempts=transfer.attempts,
        retries=transfer.retries,
        paged=transfer.paged,
        error=transfer.error,
        created_at=time_of(transfer.created_us),
        updated_at=time_of(transfer.updated_us),
    )


async def _found(call: Call) -> Transfer:
    id_: UUID = id_from(call.request.named["id"])
    found = await operator_reads.one(call.service.gate.store, id_)
    if found is None:
        raise RequestRefused(NOT_FOUND, NO_TRANSFER)
    return found


async def history(call: Call) -> HttpReply:
    """One transfer with all its answers and the attempts that are kept."""
    [transfer] = await _with_outages(call, [await _found(call)])
    store = call.service.gate.store
    answers = [
        TransferAnswer(
            version=a.version,
            path=list(a.path),
            verb=a.verb,
            answer=a.answer,
            reason=a.reason,
            evidence=dict(a.evidence),
            actor=a.actor,
            at=time_of(a.at_us),
            hash=a.hash,
        )
        for a in await operator_reads.history(store, transfer.id)
    ]
    attempts = [
        TransferAttempt(a.version, a.retry, a.reason, time_of(a.at_us))
        for a in await operator_reads.attempts(store, transfer.id)
    ]
    return json_reply(TransferHistory(operator_transfer(call, transfer), answers, attempts))


async def retry_now(call: Call) -> HttpReply:
    transfer = await _found(call)
    if transfer.lane is None:
        raise RequestRefused(Refusal.INVALID_REQUEST, "this transfer has ended")
    gate = call.service.gate
    await gate.store.release([transfer])
    # If only another process has the system, its next scan finds what was released.
    if transfer.lane in gate.engine.lanes:
        gate.engine.lanes[transfer.lane].wake()
    return json_reply(operator_transfer(call, transfer), 202)


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
        _reason(body),
        body.evidence,
        call.identity.subject,
    )
    number = await resolution.propose(gate, transfer, proposal)
    if isinstance(number, Refusal):
        raise RequestRefused(number, "name the open version, an answer, a reason and evidence")
    return json_reply(ResolutionProposed(number, ulid_of(transfer.id)), 201)


async def confirm(call: Call) -> HttpReply:
    """A second person agrees. If the answer is "rejected", the system is told first to refuse."""
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
    shown = operator_transfer(call, transfer)
    return json_reply(ResolutionConfirmed(found.id, outcome, shown))


async def halt(call: Call) -> HttpReply:
    reason = _reason(call.body(ReasonBody))
    store = call.service.gate.store
    number = await store.halt(reason, call.identity.subject)
    in_force = [halt_shape(halt) for halt in await store.halts()]
    return json_reply(HaltAdded(bool(in_force), number, in_force))


async def halts(call: Call) -> HttpReply:
    in_force = [halt_shape(halt) for halt in await call.service.gate.store.halts()]
    return json_reply(HaltList(bool(in_force), in_force))


async def resume(call: Call) -> HttpReply:
    """End the halts that are named, or all. Money moves again when none is left."""
    body = call.body(ResumeBody)
    reason, store = _reason(body), call.service.gate.store
    ended = await store.resume(reason, call.identity.subject, body.halts)
    left = [halt_shape(halt) for halt in await store.halts()]
    return json_reply(HaltsEnded(bool(left), list(map(halt_shape, ended)), left))


def _reason(body: ReasonBody | ResumeBody | ResolveBody) -> str:
    reason = body.reason.strip()
    if not reason:
        raise RequestRefused(Refusal.INVALID_REQUEST, "the reason is empty: say why")
    return reason


async def audit(call: Call) -> HttpReply:
    audit = call.service.audit
    if audit is None:
        raise RequestRefused(NOT_FOUND, "no audit runs here")
    full = call.request.parameters.get("full", "true") != "false"
    async with _progress_shared(call.service.progress, audit):
        return json_reply(await audit.run(full=full))


@asynccontextmanager
async def _progress_shared(shared: SharedAuditProgress | None, audit: Audit) -> AsyncIterator[None]:
    """Share the progress with the other processes of this port: any may be asked for it."""
    if shared is None:
        yield
        return

    async def share() -> None:
        while True:
            shared.tell(audit.read["transfers"])
            await asyncio.sleep(PROGRESS_EVERY_S)

    sharing = asyncio.create_task(share())
    try:
        yield
    finally:
        sharing.cancel()
        shared.tell(audit.read["transfers"])


async def audit_progress(call: Call) -> HttpReply:
    """How much the running audit has read, or the last one."""
    audit, shared = call.service.audit, call.service.progress
    if audit is None:
        raise RequestRefused(NOT_FOUND, "no audit runs here")
    read = None if shared is None else shared.heard()
    if read is None:
        read = audit.read["transfers"]
    about = await operator_reads.about_how_many(call.service.gate.store)
    return json_reply(AuditProgressShown(read, about))
