"""Conversions between values of the engine and the texts and types of the API."""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from uuid import UUID

from ulid import ULID

from tidegate.core.kind import Party, Transfer
from tidegate.core.money import format_amount
from tidegate.core.ports import Halt
from tidegate.core.refusals import Refusal
from tidegate.core.request import AccountType, Asset
from tidegate.engine.gate import Gate
from tidegate.service.parameters import DEFAULT_LIMIT, MAX_LIMIT
from tidegate.service.problem import NOT_FOUND, code_of
from tidegate.service.reply_types import AssetShape, HaltShape, TransferShape
from tidegate.service.routing import RequestRefused
from tidegate.store.operator_reads import NEWEST

PENDING = "PENDING"
NO_TRANSFER = "there is no such transfer"
DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
PAIRS = [first + second for first in DIGITS for second in DIGITS]
ULID_CHARS = 26


def halt_shape(halt: Halt) -> HaltShape:
    return HaltShape(halt.id, halt.reason, halt.actor, time_of(halt.at_us))


def ulid_of(id_: UUID) -> str:
    """Two characters for ten bits: a third of the time that the library takes."""
    number = id_.int
    return "".join([PAIRS[number >> shift & 1023] for shift in range(120, -1, -10)])


def id_from(text: str) -> UUID:
    """Read a ULID or a UUID. Any other text is the id of no transfer."""
    try:
        return ULID.from_str(text).to_uuid() if len(text) == ULID_CHARS else UUID(text)
    except ValueError:
        raise RequestRefused(NOT_FOUND, NO_TRANSFER) from None


def time_of(at_us: int) -> str:
    return f"{_second(at_us // 1_000_000)}.{at_us // 1000 % 1000:03d}Z"


@lru_cache(maxsize=64)
def _second(at_s: int) -> str:
    """Cached, because most times that are shown are of the last seconds."""
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%dT%H:%M:%S}"


def account_name(accounts: Mapping[str, AccountType], party: Party) -> str:
    for name, account in accounts.items():
        if account.book == party.book and account.system == party.system:
            return name
    return party.book


def asset_of(assets: Mapping[str, Asset], asset_id: int) -> Asset:
    return next(asset for asset in assets.values() if asset.id == asset_id)


def asset_shape(asset: Asset) -> AssetShape:
    maximum = asset.max_transfer_amount
    return AssetShape(
        asset=asset.code,
        decimals=asset.decimals,
        status=asset.status,
        internal_transfer_enabled=asset.internal_transfer_enabled,
        min_transfer_amount=format_amount(asset.min_transfer_amount, asset.decimals),
        max_transfer_amount=None if maximum is None else format_amount(maximum, asset.decimals),
    )


MESSAGES = {
    "COMMITTED": "Transfer successful",
    "FAILED": "Transfer failed: nothing was moved",
    "ROLLED_BACK": "Transfer was undone: the money is back where it was",
}


def failure_of(transfer: Transfer) -> str | None:
    """Why a transfer ended without paying, as a stable code."""
    paid = transfer.lane is not None or transfer.state == "COMMITTED"
    return None if paid else code_of(transfer.error)


def message_of(transfer: Transfer) -> str:
    message = MESSAGES.get(transfer.state, "Transfer is being processed")
    code = failure_of(transfer)
    return message if code is None else f"{message} ({code})"


def shape(
    gate: Gate, transfer: Transfer, *, duplicate: bool = False, pending: bool = False
) -> TransferShape:
    """With `pending`, show only that it has not ended, instead of its state."""
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
    """Where a list continues. Without a cursor it begins at the newest."""
    try:
        return NEWEST if text is None else id_from(text)
    except RequestRefused:
        raise RequestRefused(
            Refusal.INVALID_REQUEST, "cursor must be the next_cursor of a page"
        ) from None


def word_from(text: str | None) -> str | None:
    """A name to search for. PostgreSQL refuses a text with a NUL, so it is refused here."""
    if text is not None and "\x00" in text:
        raise RequestRefused(Refusal.INVALID_REQUEST, "a name must not have control characters")
    return text


def limit_from(text: str | None) -> int:
    if text is None:
        return DEFAULT_LIMIT
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 4 and 0 < int(text) <= MAX_LIMIT):
        raise RequestRefused(
            Refusal.INVALID_REQUEST, f"limit must be a number from 1 to {MAX_LIMIT}"
        )
    return int(text)
