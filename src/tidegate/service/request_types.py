"""What goes over the wire: requests as they are read, transfers as they are shown."""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from uuid import UUID

import msgspec
from ulid import ULID

from tidegate.core.kind import Party, Transfer
from tidegate.core.money import format_amount
from tidegate.core.ports import Halt
from tidegate.core.refusals import Refusal
from tidegate.core.request import AccountType, Asset
from tidegate.engine.gate import Gate
from tidegate.service.problem import NOT_FOUND, code_of
from tidegate.service.routing import RequestRefused
from tidegate.store.operator_reads import NEWEST

PENDING = "PENDING"
NO_TRANSFER = "there is no such transfer"
MAX_LIMIT, DEFAULT_LIMIT = 100, 20
DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
PAIRS = [first + second for first in DIGITS for second in DIGITS]
ULID_CHARS = 26


FROM_TO = {"source": "from", "target": "to"}


class TransferBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename=FROM_TO):
    """`POST /api/v1/internal_transfer`."""

    source: str
    target: str
    asset: str
    amount: str
    cid: str | None = None
    user_id: int | None = None


class BatchBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    transfers: list[TransferBody]


class LegacyTransferBody(TransferBody, frozen=True):
    """`POST /api/v1/transfer`: the same, with the older names of the accounts."""


class ExternalTransferBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    user_id: int
    account: str
    asset: str
    amount: str
    cid: str


class StatusBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    user_id: int
    account: str
    asset: str
    status: str


class AssetBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Amounts are decimal strings; an empty maximum means none."""

    status: str | None = None
    internal_transfer_enabled: bool | None = None
    min_transfer_amount: str | None = None
    max_transfer_amount: str | None = None


class ResolveBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one person says about a stuck question: `answer` is done, rejected or suspense."""

    version: int
    answer: str
    reason: str
    evidence: dict[str, str]


class ReasonBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reason: str


class ResumeBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reason: str
    halts: list[int] | None = None  # Which to end; all in force, if it is not given.


class HaltShape(msgspec.Struct, frozen=True):
    """Who has stopped all money, and why."""

    id: int
    reason: str
    by: str
    at: str


def halt_shape(halt: Halt) -> HaltShape:
    return HaltShape(halt.id, halt.reason, halt.actor, time_of(halt.at_us))


class TransferShape(msgspec.Struct, frozen=True, rename=FROM_TO):
    """A transfer as its owner sees it. Both ids carry the same ULID."""

    transfer_id: str
    req_id: str
    source: str
    target: str
    asset: str
    amount: str
    state: str
    message: str
    cid: str | None
    created_at: str
    updated_at: str
    duplicate: bool = False
    code: str | None = None  # Why it was refused, if it has ended so.


def ulid_of(id_: UUID) -> str:
    """As a library would write it, in a third of the time: two characters for ten bits."""
    number = id_.int
    return "".join([PAIRS[number >> shift & 1023] for shift in range(120, -1, -10)])


def id_from(text: str) -> UUID:
    """A ULID or a UUID; whatever else is given, there is no such transfer."""
    try:
        return ULID.from_str(text).to_uuid() if len(text) == ULID_CHARS else UUID(text)
    except ValueError:
        raise RequestRefused(NOT_FOUND, NO_TRANSFER) from None


def time_of(at_us: int) -> str:
    return f"{_second(at_us // 1_000_000)}.{at_us // 1000 % 1000:03d}Z"


@lru_cache(maxsize=64)
def _second(at_s: int) -> str:
    """Of what is shown, most has happened just now."""
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%dT%H:%M:%S}"


def account_name(accounts: Mapping[str, AccountType], party: Party) -> str:
    for name, account in accounts.items():
        if account.book == party.book and account.system == party.system:
            return name
    return party.book


def asset_of(assets: Mapping[str, Asset], asset_id: int) -> Asset:
    return next(asset for asset in assets.values() if asset.id == asset_id)


def asset_shape(asset: Asset) -> dict[str, object]:
    most = asset.max_transfer_amount
    return {
        "asset": asset.code,
        "decimals": asset.decimals,
        "status": asset.status,
        "internal_transfer_enabled": asset.internal_transfer_enabled,
        "min_transfer_amount": format_amount(asset.min_transfer_amount, asset.decimals),
        "max_transfer_amount": None if most is None else format_amount(most, asset.decimals),
    }


MESSAGES = {
    "COMMITTED": "Transfer successful",
    "FAILED": "Transfer failed: nothing was moved",
    "ROLLED_BACK": "Transfer was undone: the money is back where it was",
}


def failure_of(transfer: Transfer) -> str | None:
    """Why a transfer has ended without paying, as a stable code."""
    paid = transfer.lane is not None or transfer.state == "COMMITTED"
    return None if paid else code_of(transfer.error)


def message_of(transfer: Transfer) -> str:
    message = MESSAGES.get(transfer.state, "Transfer is being processed")
    code = failure_of(transfer)
    return message if code is None else f"{message} ({code})"


def shape(
    gate: Gate, transfer: Transfer, *, duplicate: bool = False, pending: bool = False
) -> TransferShape:
    """`pending`: say only that it has not ended, not where it is."""
    asset = asset_of(gate.assets, transfer.asset_id)
    state = PENDING if pending and transfer.lane is not None else transfer.state
    id_ = ulid_of(transfer.id)
    return TransferShape(
        transfer_id=id_,
        req_id=id_,
        source=account_name(gate.accounts, transfer.parties["source"]),
        target=account_name(gate.accounts, transfer.parties["target"]),
        asset=asset.code,
        amount=format_amount(transfer.amount, asset.decimals),
        state=state,
        message=message_of(transfer),
        cid=transfer.cid,
        created_at=time_of(transfer.created_us),
        updated_at=time_of(transfer.updated_us),
        duplicate=duplicate,
        code=failure_of(transfer),
    )


def cursor_from(text: str | None) -> UUID:
    """Where a list goes on; at the newest if nothing is said."""
    try:
        return NEWEST if text is None else id_from(text)
    except RequestRefused:
        raise RequestRefused(
            Refusal.INVALID_REQUEST, "cursor is the next_cursor of a page"
        ) from None


def word_from(text: str | None) -> str | None:
    """A name to look for. There are none with a NUL, and the database cannot even be asked."""
    if text is not None and "\x00" in text:
        raise RequestRefused(Refusal.INVALID_REQUEST, "a name has no control characters")
    return text


def limit_from(text: str | None) -> int:
    if text is None:
        return DEFAULT_LIMIT
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 4 and 0 < int(text) <= MAX_LIMIT):
        raise RequestRefused(Refusal.INVALID_REQUEST, f"limit is a number from 1 to {MAX_LIMIT}")
    return int(text)
