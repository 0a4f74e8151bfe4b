"""From what a caller says to what the engine accepts: checks in a fixed order, all pure."""

import hashlib
from collections.abc import Mapping
from uuid import UUID

import msgspec

from tidegate.core.flow import Flow
from tidegate.core.money import MAX_AMOUNT, parse_amount
from tidegate.core.refusals import Refusal
from tidegate.core.transfer import NO_DETAIL, Detail, Parties, Party, Transfer, born

MAX_CID_CHARS = 64
MAX_OWNER = 2**63 - 1
MAX_ASSET_ID = 2**31 - 1
MAX_LIFE_S = 366 * 24 * 3600


class Asset(msgspec.Struct, frozen=True):
    id: int
    code: str
    decimals: int
    status: str = "ACTIVE"
    internal_transfer_enabled: bool = True
    min_transfer_amount: int = 1
    max_transfer_amount: int | None = None


class Account(msgspec.Struct, frozen=True):
    """An account type that callers may name: which book of which system it is."""

    system: str
    book: str
    supported: bool = True


class Wish(msgspec.Struct, frozen=True):
    """What a caller asks for, as text and not yet believed."""

    source: str
    target: str
    asset: str
    amount: str
    cid: str | None = None
    user_id: int | None = None


class Request(msgspec.Struct, frozen=True):
    """What the engine accepts: a transfer to be born."""

    owner: int
    flow: str
    parties: Parties
    asset_id: int
    amount: int
    cid: str | None = None  # None: the transfer's own id serves.
    detail: Detail = NO_DETAIL
    parent: UUID | None = None
    trace: str | None = None
    lives_s: float | None = None  # From its birth on: takes the place of its states' deadlines.

    def fingerprint(self) -> bytes:
        """What must be equal for the same cid to mean the same request."""
        parties = sorted(self.parties.items())
        detail = sorted(self.detail.items())
        body: tuple[object, ...] = (self.flow, parties, self.asset_id, str(self.amount), detail)
        if self.lives_s is not None:
            body = (*body, self.lives_s)
        return hashlib.sha256(msgspec.json.encode(body)).digest()[:16]


class Checked(msgspec.Struct, frozen=True):
    """A request as the engine may take it, unless it is new and something speaks against it."""

    request: Request
    veto: Refusal | None = None  # What may change with time: a replay is answered all the same.


def internal_transfer(
    wish: Wish,
    caller: int,
    accounts: Mapping[str, Account],
    assets: Mapping[str, Asset],
) -> Checked | Refusal:
    """Check a wish in the order that the callers rely on; the first «no» is the answer."""
    if wish.user_id is not None and wish.user_id != caller:
        return Refusal.FORBIDDEN
    if wish.cid is not None and not well_formed_cid(wish.cid):
        return Refusal.INVALID_REQUEST
    if wish.source not in accounts or wish.target not in accounts:
        return Refusal.INVALID_ACCOUNT_TYPE
    if wish.source == wish.target:
        return Refusal.SAME_ACCOUNT
    source, target = accounts[wish.source], accounts[wish.target]
    veto = None if source.supported and target.supported else Refusal.UNSUPPORTED_ACCOUNT_TYPE
    asset = assets.get(wish.asset)
    if asset is None:
        return veto or Refusal.INVALID_ASSET
    veto = veto or asset_refusal(asset)
    amount = parse_amount(wish.amount, asset.decimals)
    if isinstance(amount, Refusal):
        return veto or amount
    parties = {
        "source": Party(source.system, source.book, caller),
        "target": Party(target.system, target.book, caller),
    }
    request = Request(caller, "internal_transfer", parties, asset.id, amount, wish.cid)
    return Checked(request, veto or _range_refusal(amount, asset))


def well_formed_cid(cid: str) -> bool:
    return 0 < len(cid) <= MAX_CID_CHARS and cid.isascii() and cid.isprintable()


def asset_refusal(asset: Asset) -> Refusal | None:
    if asset.status != "ACTIVE":
        return Refusal.ASSET_SUSPENDED
    if not asset.internal_transfer_enabled:
        return Refusal.TRANSFER_NOT_ALLOWED
    return None


def _range_refusal(amount: int, asset: Asset) -> Refusal | None:
    if amount < asset.min_transfer_amount:
        return Refusal.AMOUNT_TOO_SMALL
    if asset.max_transfer_amount is not None and amount > asset.max_transfer_amount:
        return Refusal.AMOUNT_TOO_LARGE
    return None


def recheck(request: Request) -> Refusal | None:
    """What must hold of any request, whoever made it: the engine does not trust its callers."""
    if not 0 < request.owner <= MAX_OWNER:
        return Refusal.INVALID_REQUEST
    if not 0 < request.amount <= MAX_AMOUNT:
        return Refusal.INVALID_AMOUNT
    if not 0 < request.asset_id <= MAX_ASSET_ID:
        return Refusal.INVALID_ASSET
    if request.cid is not None and not well_formed_cid(request.cid):
        return Refusal.INVALID_REQUEST
    if request.lives_s is not None and not 0 < request.lives_s <= MAX_LIFE_S:
        return Refusal.INVALID_REQUEST
    source, target = request.parties.get("source"), request.parties.get("target")
    if source is not None and source == target:
        return Refusal.SAME_ACCOUNT
    return None


def transfer_of(request: Request, flow: Flow, id_: UUID) -> Transfer:
    """The transfer that a request becomes, at its first state that asks something."""
    return born(
        flow,
        Transfer(
            id_,
            request.owner,
            request.flow,
            str(flow.first),
            None,
            request.parties,
            request.asset_id,
            request.amount,
            detail=request.detail,
            cid=request.cid,
            parent=request.parent,
            trace=request.trace,
        ),
    )
