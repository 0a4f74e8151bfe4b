"""What may be asked of a core, what each request is answered with, and which make no sense."""

import asyncio
from typing import NamedTuple

from tidegate.core import wire
from tidegate.core.wire import Kind, Malformed, Status
from tidegate.trading_core.judge import BOOKS

ROWS = {
    Kind.ASK: wire.OPERATION,
    Kind.QUERY: wire.KEY,
    Kind.BALANCES: wire.ACCOUNT,
    Kind.ASSETS: wire.ASSET,
}
SETTABLE = frozenset(int(status) for status in Status) - {int(Status.ABSENT)}


class Request(NamedTuple):
    kind: Kind
    body: bytes
    reply: asyncio.Future[bytes]


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
        wire.unpack_rebinding(body)
    elif kind not in (Kind.TOTALS, Kind.SNAPSHOT) or body:
        raise Malformed(f"there is no request of kind {int(kind)}")
