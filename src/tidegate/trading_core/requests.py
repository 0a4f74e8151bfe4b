"""The requests of a core: which sessions may send them, and the kinds of their replies."""

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

ROW_STRUCTS = {
    FrameKind.ASK: wire.OPERATION,
    FrameKind.QUERY: wire.KEY,
    FrameKind.BALANCES: wire.ACCOUNT,
    FrameKind.ASSETS: wire.ASSET,
}
SETTABLE = frozenset(int(status) for status in AccountStatus) - {int(AccountStatus.ABSENT)}


class BindingChanged(Exception):
    """The core was rebound after this session began. The session must end."""

    def __init__(self) -> None:
        super().__init__("the core is now bound to another store or database; connect again")


class RequestDeclined(Exception):
    """One request was not carried out. Nothing is recorded, and the session continues."""

    def __init__(self, code: SessionRefusal, message: str) -> None:
        super().__init__(message)
        self.refusal = RefusalFrame(code, message)


class CoreRequest(NamedTuple):
    kind: FrameKind
    body: bytes
    reply: asyncio.Future[bytes]
    session: Binding | None = None  # From the HELLO of its session. None: the core's own request.


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
# A session without a store may send these and EVENTS. A store may send all but REBIND.
ADMINISTRATION = READS | {FrameKind.SNAPSHOT, FrameKind.REBIND}


def admit(kind: FrameKind, session: Binding, bound: Binding) -> None:
    """Raise BindingChanged or RequestDeclined if this session may not send this request."""
    if session.store:
        if session != bound:
            raise BindingChanged
        if kind == FrameKind.REBIND:
            # Otherwise the request would end the session that sent it.
            raise _not_allowed(kind, "needs a session of an administrator, without a store")
    elif kind not in ADMINISTRATION:
        raise _not_allowed(kind, "needs a session with a store; this session is without a store")


def _not_allowed(kind: FrameKind, reason: str) -> RequestDeclined:
    return RequestDeclined(
        SessionRefusal.NOT_ALLOWED, f"NOT_ALLOWED: {kind.name} {reason}; nothing was done"
    )


def invalid_account(outcome: int, account: bytes) -> RequestDeclined:
    """The refusal of a status for an account that may not be opened."""
    _, asset_id, owner = wire.ACCOUNT.unpack(account)
    missing = f"owner {owner}" if outcome == CoreOutcome.INVALID_OWNER else f"asset {asset_id}"
    message = f"{CoreOutcome(outcome).name}: {missing} does not exist; no account was opened"
    return RequestDeclined(SessionRefusal.INVALID_ACCOUNT, message)


def check(kind: FrameKind, body: bytes) -> None:
    """Raise MalformedFrame unless this is a valid request."""
    row = ROW_STRUCTS.get(kind)
    if row is not None:
        if len(body) % row.size or len(body) > row.size * wire.MAX_OPERATIONS:
            raise MalformedFrame(f"{len(body)} bytes are not a list of {row.size}-byte rows")
    elif kind == FrameKind.SET_STATUS:
        if len(body) != wire.STATUS.size or body[0] not in BOOKS or body[-1] not in SETTABLE:
            raise MalformedFrame("the body is not an account and a status")
    elif kind == FrameKind.RETIRE:
        if len(body) != wire.FLOOR.size:
            raise MalformedFrame("the body is not a floor")
    elif kind == FrameKind.BIND:
        wire.unpack_binding(body)
    elif kind == FrameKind.REBIND:
        if not wire.unpack_rebinding(body).binding.store:
            raise MalformedFrame("REBIND without a store")
    elif kind not in (FrameKind.TOTALS, FrameKind.SNAPSHOT) or body:
        raise MalformedFrame(f"no request has kind {int(kind)}")
