"""What may be asked of a core, by whom, and what each request is answered with."""

import asyncio
from typing import NamedTuple

from tidegate.core import wire
from tidegate.core.wire import (
    AccountStatus,
    Binding,
    CoreOutcome,
    FrameKind,
    MalformedFrame,
    RefusalFrame,
    SessionRefusal,
)
from tidegate.trading_core.judge import BOOKS

ROWS = {
    FrameKind.ASK: wire.OPERATION,
    FrameKind.QUERY: wire.KEY,
    FrameKind.BALANCES: wire.ACCOUNT,
    FrameKind.ASSETS: wire.ASSET,
}
SETTABLE = frozenset(int(status) for status in AccountStatus) - {int(AccountStatus.ABSENT)}


class BindingChanged(Exception):
    """The core was bound anew since the session greeted it. The session must end."""

    def __init__(self) -> None:
        super().__init__("this core was bound to another store or database; greet it again")


class RequestDeclined(Exception):
    """One request is not carried out. Nothing is recorded, and the session goes on."""

    def __init__(self, code: SessionRefusal, message: str) -> None:
        super().__init__(message)
        self.refusal = RefusalFrame(code, message)


class CoreRequest(NamedTuple):
    kind: FrameKind
    body: bytes
    reply: asyncio.Future[bytes]
    session: Binding | None = None  # What its sender greeted with; None: it came from no session.


REPLIES = {
    FrameKind.ASK: FrameKind.ANSWERS,
    FrameKind.SET_STATUS: FrameKind.RECORDED,
    FrameKind.RETIRE: FrameKind.RECORDED,
    FrameKind.SNAPSHOT: FrameKind.RECORDED,
    FrameKind.REBIND: FrameKind.RECORDED,
    FrameKind.ASSETS: FrameKind.RECORDED,
    FrameKind.QUERY: FrameKind.FOUND,
    FrameKind.BALANCES: FrameKind.BALANCED,
    FrameKind.TOTALS: FrameKind.SUMMED,
}
READS = frozenset({FrameKind.QUERY, FrameKind.BALANCES, FrameKind.TOTALS})
# All that a session without a store may send, beside EVENTS. A store may send the others and reads.
ADMINISTRATION = READS | {FrameKind.SNAPSHOT, FrameKind.REBIND}


def admit(kind: FrameKind, session: Binding, bound: Binding) -> None:
    """Raise Rebound or Declined unless this session may send this request to a core bound so."""
    if session.store:
        if session != bound:
            raise BindingChanged
        if kind == FrameKind.REBIND:
            # Else the session that rebinds would be one of those that its own request ends.
            raise _not_allowed(kind, "comes from an administrator, who greets without a store")
    elif kind not in ADMINISTRATION:
        raise _not_allowed(kind, "comes from a store, and this session greeted without a store")


def _not_allowed(kind: FrameKind, reason: str) -> RequestDeclined:
    return RequestDeclined(
        SessionRefusal.NOT_ALLOWED, f"NOT_ALLOWED: {kind.name} {reason}; nothing was done"
    )


def invalid_account(outcome: int, account: bytes) -> RequestDeclined:
    """Why a status does not open this account."""
    _, asset_id, owner = wire.ACCOUNT.unpack(account)
    missing = f"owner {owner}" if outcome == CoreOutcome.INVALID_OWNER else f"asset {asset_id}"
    message = f"{CoreOutcome(outcome).name}: {missing} does not exist; no account was opened"
    return RequestDeclined(SessionRefusal.INVALID_ACCOUNT, message)


def check(kind: FrameKind, body: bytes) -> None:
    """Raise Malformed unless this is a request that a core can take."""
    form = ROWS.get(kind)
    if form is not None:
        if len(body) % form.size or len(body) > form.size * wire.MAX_OPERATIONS:
            raise MalformedFrame(f"{len(body)} bytes are no list of rows of {form.size}")
    elif kind == FrameKind.SET_STATUS:
        if len(body) != wire.STATUS.size or body[0] not in BOOKS or body[-1] not in SETTABLE:
            raise MalformedFrame("this is no account and status")
    elif kind == FrameKind.RETIRE:
        if len(body) != wire.FLOOR.size:
            raise MalformedFrame("this is no floor")
    elif kind == FrameKind.BIND:
        wire.unpack_binding(body)
    elif kind == FrameKind.REBIND:
        if not wire.unpack_rebinding(body).binding.store:
            raise MalformedFrame("this REBIND names no store")
    elif kind not in (FrameKind.TOTALS, FrameKind.SNAPSHOT) or body:
        raise MalformedFrame(f"there is no request of kind {int(kind)}")
