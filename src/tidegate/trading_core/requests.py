"""What may be asked of a core, by whom, and what each request is answered with."""

import asyncio
from typing import NamedTuple

from tidegate.core import wire
from tidegate.core.wire import Binding, Kind, Malformed, Outcome, Refusal, Refused, Status
from tidegate.trading_core.judge import BOOKS

ROWS = {
    Kind.ASK: wire.OPERATION,
    Kind.QUERY: wire.KEY,
    Kind.BALANCES: wire.ACCOUNT,
    Kind.ASSETS: wire.ASSET,
}
SETTABLE = frozenset(int(status) for status in Status) - {int(Status.ABSENT)}


class Rebound(Exception):
    """The core was bound anew since the session greeted it. The session must end."""

    def __init__(self) -> None:
        super().__init__("this core was bound to another store or database; greet it again")


class Declined(Exception):
    """One request is not carried out. Nothing is recorded, and the session goes on."""

    def __init__(self, code: Refused, message: str) -> None:
        super().__init__(message)
        self.refusal = Refusal(code, message)


class Request(NamedTuple):
    kind: Kind
    body: bytes
    reply: asyncio.Future[bytes]
    session: Binding | None = None  # What its sender greeted with; None: it came from no session.


REPLIES = {
    Kind.ASK: Kind.ANSWERS,
    Kind.SET_STATUS: Kind.RECORDED,
    Kind.RETIRE: Kind.RECORDED,
    Kind.SNAPSHOT: Kind.RECORDED,
    Kind.REBIND: Kind.RECORDED,
    Kind.ASSETS: Kind.RECORDED,
    Kind.QUERY: Kind.FOUND,
    Kind.BALANCES: Kind.BALANCED,
    Kind.TOTALS: Kind.SUMMED,
}
READS = frozenset({Kind.QUERY, Kind.BALANCES, Kind.TOTALS})
# All that a session without a store may send, beside EVENTS. A store may send the others and reads.
ADMINISTRATION = READS | {Kind.SNAPSHOT, Kind.REBIND}


def admit(kind: Kind, session: Binding, bound: Binding) -> None:
    """Raise Rebound or Declined unless this session may send this request to a core bound so."""
    if session.store:
        if session != bound:
            raise Rebound
        if kind == Kind.REBIND:
            # Else the session that rebinds would be one of those that its own request ends.
            raise _not_allowed(kind, "comes from an administrator, who greets without a store")
    elif kind not in ADMINISTRATION:
        raise _not_allowed(kind, "comes from a store, and this session greeted without a store")


def _not_allowed(kind: Kind, reason: str) -> Declined:
    return Declined(Refused.NOT_ALLOWED, f"NOT_ALLOWED: {kind.name} {reason}; nothing was done")


def invalid_account(outcome: int, account: bytes) -> Declined:
    """Why a status does not open this account."""
    _, asset_id, owner = wire.ACCOUNT.unpack(account)
    missing = f"owner {owner}" if outcome == Outcome.INVALID_OWNER else f"asset {asset_id}"
    message = f"{Outcome(outcome).name}: {missing} does not exist; no account was opened"
    return Declined(Refused.INVALID_ACCOUNT, message)


def check(kind: Kind, body: bytes) -> None:
    """Raise Malformed unless this is a request that a core can take."""
    form = ROWS.get(kind)
    if form is not None:
        if len(body) % form.size or len(body) > form.size * wire.MAX_OPERATIONS:
            raise Malformed(f"{len(body)} bytes are no list of rows of {form.size}")
    elif kind == Kind.SET_STATUS:
        if len(body) != wire.STATUS.size or body[0] not in BOOKS or body[-1] not in SETTABLE:
            raise Malformed("this is no account and status")
    elif kind == Kind.RETIRE:
        if len(body) != wire.FLOOR.size:
            raise Malformed("this is no floor")
    elif kind == Kind.BIND:
        wire.unpack_binding(body)
    elif kind == Kind.REBIND:
        if not wire.unpack_rebinding(body).binding.store:
            raise Malformed("this REBIND names no store")
    elif kind not in (Kind.TOTALS, Kind.SNAPSHOT) or body:
        raise Malformed(f"there is no request of kind {int(kind)}")
