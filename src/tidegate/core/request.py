"""Checks that turn a caller's request into one that the engine accepts, in a fixed order."""

import hashlib
from collections.abc import Container, Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias
from uuid import UUID

import msgspec

from tidegate.core.answers import is_storable
from tidegate.core.flow import FEES, Flow
from tidegate.core.kind import (
    GENESIS,
    NO_DETAIL,
    Detail,
    Parties,
    Party,
    PartyTemplate,
    Transfer,
    TransferKind,
    details_of,
    party_templates_of,
)
from tidegate.core.money import MAX_AMOUNT, parse_amount
from tidegate.core.refusals import Refusal
from tidegate.core.transfer import Expiry, lane_of

MAX_CID_CHARS = 64
MAX_KEY_CHARS = 128  # For keys that Tidegate composes, such as a member's id and a cid.
MAX_OWNER = 2**63 - 1
MAX_ASSET_ID = 2**31 - 1
MAX_LIFE_S = 366 * 24 * 3600
MAX_TOTAL_TEXT_CHARS = 65_536  # The details, terms and trace of a request together.
MAX_BOOK_CHARS = 128
FEES_BOOK = "FEES"  # Fees stay in a book of the owner, so that the books of an owner sum to zero.

# Each sort of caller has a key space of its own, so that equal keys of two sorts do not collide.
# The mark is not ASCII and a cid must be ASCII, so no caller can send a key of another space.
USER, OPERATOR, GUILD, BATCH = "", "operator", "guild", "batch"
SPACE_MARK = "\u00a7"

RequestTerms: TypeAlias = Mapping[str, str]


class Asset(msgspec.Struct, frozen=True):
    id: int
    code: str
    decimals: int
    status: str = "ACTIVE"
    internal_transfer_enabled: bool = True
    min_transfer_amount: int = 1
    max_transfer_amount: int | None = None


class AccountType(msgspec.Struct, frozen=True):
    """An account type that callers may name, and the system and book behind it."""

    system: str
    book: str
    supported: bool = True


class TransferRequest(msgspec.Struct, frozen=True):
    """What a caller asks for, as text. Nothing in it is checked yet."""

    source: str
    target: str
    asset: str
    amount: str
    cid: str | None = None
    user_id: int | None = None
    space: str = USER


class Request(msgspec.Struct, frozen=True):
    """A request that the engine accepts: a transfer to be created."""

    owner: int
    flow: str
    parties: Parties
    asset_id: int
    amount: int
    cid: str | None = None  # None: the request has no idempotency key.
    detail: Detail = NO_DETAIL
    parent: UUID | None = None
    trace: str | None = None
    lives_s: float | None = None  # Expiry after its creation. It replaces the states' deadlines.
    expires_us: int | None = None  # The same as a time of the database's clock.
    space: str = USER  # The key space of its cid.
    # What the caller asked for, as given: part of the fingerprint. None: the parties are used.
    terms: RequestTerms | None = None
    fee: int = 0  # Taken from the amount when the target is credited.

    @property
    def expiry(self) -> Expiry | None:
        if self.lives_s is None and self.expires_us is None:
            return None
        return Expiry(self.lives_s, self.expires_us)

    @property
    def key(self) -> str | None:
        return None if self.cid is None else key_of(self.space, self.cid)

    def fingerprint(self) -> bytes:
        """Two requests with the same key and the same fingerprint are the same request.

        The fee is not part of it: the fee schedule may change between a request and its replay.
        The SQL function `request_fingerprint` computes the same value for requests in the inbox.
        """
        return fingerprint_form_of(self).fingerprint(self.owner, self.amount)

    def older_fingerprint(self) -> bytes:
        """As versions before the key spaces computed it: the store still has keys of theirs."""
        parties = sorted(self.parties.items())
        detail = sorted(self.detail.items())
        body: tuple[object, ...] = (self.flow, parties, self.asset_id, str(self.amount), detail)
        if self.lives_s is not None:
            body = (*body, self.lives_s)
        return hashlib.sha256(msgspec.json.encode(body)).digest()[:16]


class FingerprintForm:
    """The text whose hash is the fingerprint, with gaps for the owner and the amount.

    Requests that differ in these two only share one form. In the text, each part follows its
    length.
    """

    __slots__ = ("_forms", "_head", "_owned", "_tail")

    def __init__(self, head: str, owned: Sequence[tuple[str, int, str]], tail: str) -> None:
        self._head = head  # The flow and the asset. The amount follows.
        # Terms that end with the owner, as (text before, length without the owner, start).
        self._owned, self._tail = owned, tail
        self._forms: dict[int, bytes] = {}  # By the length of the owner's number.

    def fingerprint(self, owner: int, amount: int) -> bytes:
        owner_text, amount_text = b"%d" % owner, b"%d" % amount
        form = self._forms.get(len(owner_text)) or self._form(len(owner_text))
        text = form % (len(amount_text), amount_text, *[owner_text] * len(self._owned))
        return _sha256(text).digest()[:16]

    def _form(self, digits: int) -> bytes:
        text = _escaped(self._head) + b"%d:%b"
        for before, length, start in self._owned:
            text += b"%b%d:%b%%b" % (_escaped(before), length + digits, _escaped(start))
        form = self._forms[digits] = text + _escaped(self._tail)
        return form


def _escaped(text: str) -> bytes:
    return text.encode().replace(b"%", b"%%")


def fingerprint_form_of(request: Request) -> FingerprintForm:
    terms: dict[str, str] = dict(request.terms or {})
    owned: dict[str, str] = {}
    if request.terms is None:
        terms = {f"detail {name}": value for name, value in request.detail.items()}
        for role, party in request.parties.items():
            own = party.owner == request.owner
            start = f"{party.system}/{party.book}/"
            (owned if own else terms)[role] = start if own else f"{start}{party.owner}"
        if request.lives_s is not None:
            terms["lives_s"] = str(request.lives_s)
    parts, before = [], ""
    for name in sorted({*terms, *owned}):
        before += f"{len(name)}:{name}"
        if name in owned:
            parts.append((before, len(owned[name]), owned[name]))
            before = ""
        else:
            before += f"{len(terms[name])}:{terms[name]}"
    flow, asset = request.flow, str(request.asset_id)
    return FingerprintForm(f"{len(flow)}:{flow}{len(asset)}:{asset}", tuple(parts), before)


_sha256 = hashlib.sha256


def key_of(space: str, cid: str) -> str:
    return f"{space}{SPACE_MARK}{cid}" if space else cid


class CheckedRequest(msgspec.Struct, frozen=True):
    """A request that the engine may accept. The veto applies only if the request is new."""

    request: Request
    veto: Refusal | None = None  # For a reason that changes with time. A replay is still answered.


def internal_transfer(
    requested: TransferRequest,
    caller: int,
    accounts: Mapping[str, AccountType],
    assets: Mapping[str, Asset],
) -> CheckedRequest | Refusal:
    """Check a request. The order is part of the API: the first refusal is returned."""
    if requested.user_id is not None and requested.user_id != caller:
        return Refusal.FORBIDDEN
    if requested.cid is not None and not well_formed_cid(requested.cid):
        return Refusal.INVALID_REQUEST
    if requested.source not in accounts or requested.target not in accounts:
        return Refusal.INVALID_ACCOUNT_TYPE
    if requested.source == requested.target:
        return Refusal.SAME_ACCOUNT
    source, target = accounts[requested.source], accounts[requested.target]
    veto = None if source.supported and target.supported else Refusal.UNSUPPORTED_ACCOUNT_TYPE
    asset = assets.get(requested.asset)
    if asset is None:
        return veto or Refusal.INVALID_ASSET
    veto = veto or asset_refusal(asset)
    amount = parse_amount(requested.amount, asset.decimals)
    if isinstance(amount, Refusal):
        return veto or amount
    parties = {
        "source": Party(source.system, source.book, caller),
        "target": Party(target.system, target.book, caller),
    }
    request = Request(
        caller,
        "internal_transfer",
        parties,
        asset.id,
        amount,
        requested.cid,
        space=requested.space,
        terms={"from": requested.source, "to": requested.target},
    )
    return CheckedRequest(request, veto or _range_refusal(amount, asset))


def well_formed_cid(cid: str, max_chars: int = MAX_CID_CHARS) -> bool:
    return 0 < len(cid) <= max_chars and cid.isascii() and cid.isprintable()


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


def fields_refusal(request: Request) -> Refusal | None:
    """Check the fields that differ between requests of one kind."""
    if not 0 < request.owner <= MAX_OWNER:
        return Refusal.INVALID_REQUEST
    if not 0 < request.amount <= MAX_AMOUNT:
        return Refusal.INVALID_AMOUNT
    if not 0 < request.asset_id <= MAX_ASSET_ID:
        return Refusal.INVALID_ASSET
    max_chars = MAX_CID_CHARS if request.space in (USER, OPERATOR) else MAX_KEY_CHARS
    if request.cid is not None and not well_formed_cid(request.cid, max_chars):
        return Refusal.INVALID_REQUEST
    if request.lives_s is not None and not 0 < request.lives_s <= MAX_LIFE_S:
        return Refusal.INVALID_REQUEST
    if request.trace is None and request.terms is None and not request.detail:
        return None
    # One text that the database cannot store would fail the whole batch.
    text = _all_text(request)
    if text and not (len(text) <= MAX_TOTAL_TEXT_CHARS and is_storable(text)):
        return Refusal.INVALID_REQUEST
    return None


def _all_text(request: Request) -> str:
    parts = [request.trace or ""]
    for named in (request.detail, request.terms):
        if named:
            parts += [*named, *named.values()]
    return "".join(parts)


def parties_refusal(request: Request, flow: Flow, local: Container[str]) -> Refusal | None:
    """Check the parties. The result holds for all requests with the same party templates."""
    if request.parties.keys() != flow.required_roles:
        return Refusal.INVALID_PARTIES
    books = [party.book for party in request.parties.values()]
    if not all(len(book) <= MAX_BOOK_CHARS and is_storable(book) for book in books):
        return Refusal.INVALID_PARTIES
    source, target = request.parties["source"], request.parties.get("target")
    if source == target:
        return Refusal.SAME_ACCOUNT
    if FEES in flow.roles:
        # One operation credits both the target and the fees. Only a local system can do that.
        system = request.parties["target"].system
        if system not in local or request.parties[FEES] != Party(system, FEES_BOOK, request.owner):
            return Refusal.UNSUPPORTED_ACCOUNT_TYPE
    return None


def fee_veto(request: Request, flow: Flow) -> Refusal | None:
    """Check the fee of a new transfer. Not of a replay: the fee schedule may have changed since."""
    max_fee = request.amount - 1 if FEES in flow.roles else 0
    return None if 0 <= request.fee <= max_fee else Refusal.INVALID_FEE


def transfer_of(request: Request, flow: Flow, id_: UUID) -> Transfer:
    """The transfer that a request becomes, in its first state that asks."""
    return new_transfer(request, new_kind(request, flow), id_)


def new_transfer(request: Request, kind: TransferKind, id_: UUID) -> Transfer:
    fields = (request.owner, request.amount, request.parent, request.cid, GENESIS, request.trace)
    return Transfer(kind, id_, *fields)


def new_kind(request: Request, flow: Flow) -> TransferKind:
    party_templates = party_templates_of(request.parties, request.owner)
    money, named = (request.asset_id, request.fee), (details_of(request.detail), request.space)
    return _new_kind(flow, party_templates, money, named)


@lru_cache(4096)
def _new_kind(
    flow: Flow,
    party_templates: tuple[PartyTemplate, ...],
    money: tuple[int, int],
    named: tuple[tuple[tuple[str, str], ...], str],
) -> TransferKind:
    state = flow.arrive(flow.first)[-1]
    lane = lane_of(flow, {template.role: template for template in party_templates}, state)
    details, space = named
    return TransferKind(
        flow.name, state, lane, party_templates, *money, details=details, space=space
    ).replace()
