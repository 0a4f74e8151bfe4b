"""From what a caller says to what the engine accepts: checks in a fixed order, all pure."""

import hashlib
from collections.abc import Container, Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias
from uuid import UUID

import msgspec

from tidegate.core.answers import keepable
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
MAX_KEY_CHARS = 128  # Of a key that we compose, such as a member's id and a cid.
MAX_OWNER = 2**63 - 1
MAX_ASSET_ID = 2**31 - 1
MAX_LIFE_S = 366 * 24 * 3600
MAX_WORDS_CHARS = 65_536  # Of all that a request says in words: its details, terms and trace.
MAX_BOOK_CHARS = 128
FEES_BOOK = "FEES"  # An owner's fees stay among the owner's books, so that these sum to zero.

# Key spaces: a key of one kind of caller never meets a key of another. Callers' own keys are plain
# ASCII, so no caller can write a key that looks like one of another space.
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
    """An account type that callers may name: which book of which system it is."""

    system: str
    book: str
    supported: bool = True


class TransferRequest(msgspec.Struct, frozen=True):
    """What a caller asks for, as text and not yet believed."""

    source: str
    target: str
    asset: str
    amount: str
    cid: str | None = None
    user_id: int | None = None
    space: str = USER


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
    lives_s: float | None = None  # From its creation on: takes the place of its states' deadlines.
    expires_us: int | None = None  # The same as a moment of the database's clock.
    space: str = USER  # Of its key.
    terms: RequestTerms | None = (
        None  # What was asked for in the caller's words; else the parties say it.
    )
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
        """What must be equal for the same key to mean the same request.

        Not the fee: the fee schedule may change between a request and its replay. The database
        computes the same for requests that reach its inbox: `request_fingerprint`.
        """
        return fingerprint_form_of(self).fingerprint(self.owner, self.amount)

    def older_fingerprint(self) -> bytes:
        """As versions before the key spaces computed it. Their keys are still known."""
        parties = sorted(self.parties.items())
        detail = sorted(self.detail.items())
        body: tuple[object, ...] = (self.flow, parties, self.asset_id, str(self.amount), detail)
        if self.lives_s is not None:
            body = (*body, self.lives_s)
        return hashlib.sha256(msgspec.json.encode(body)).digest()[:16]


class FingerprintForm:
    """The text that a fingerprint is the hash of, without owner and amount: requests that differ in
    nothing else share it. Each text in it is preceded by its length.
    """

    __slots__ = ("_forms", "_head", "_owned", "_tail")

    def __init__(self, head: str, owned: Sequence[tuple[str, int, str]], tail: str) -> None:
        self._head = head  # The flow and the asset. The amount follows.
        # Terms that end with the owner: what comes before, the length without the owner, the
        # beginning.
        self._owned, self._tail = owned, tail
        self._forms: dict[int, bytes] = {}  # By the length of the owner's number.

    def fingerprint(self, owner: int, amount: int) -> bytes:
        whose, money = b"%d" % owner, b"%d" % amount
        form = self._forms.get(len(whose)) or self._form(len(whose))
        text = form % (len(money), money, *[whose] * len(self._owned))
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
        for role, who in request.parties.items():
            own = who.owner == request.owner
            start = f"{who.system}/{who.book}/"
            (owned if own else terms)[role] = start if own else f"{start}{who.owner}"
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
    """A request as the engine may take it, unless it is new and something speaks against it."""

    request: Request
    veto: Refusal | None = None  # What may change with time: a replay is answered all the same.


def internal_transfer(
    wish: TransferRequest,
    caller: int,
    accounts: Mapping[str, AccountType],
    assets: Mapping[str, Asset],
) -> CheckedRequest | Refusal:
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
    request = Request(
        caller,
        "internal_transfer",
        parties,
        asset.id,
        amount,
        wish.cid,
        space=wish.space,
        terms={"from": wish.source, "to": wish.target},
    )
    return CheckedRequest(request, veto or _range_refusal(amount, asset))


def well_formed_cid(cid: str, most: int = MAX_CID_CHARS) -> bool:
    return 0 < len(cid) <= most and cid.isascii() and cid.isprintable()


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


def recheck(request: Request, flow: Flow, local: Container[str]) -> Refusal | None:
    """What must hold of any request, whoever made it: the engine does not trust its callers.

    `local` are the systems of our own database.
    """
    return own_refusal(request) or cast_refusal(request, flow, local)


def own_refusal(request: Request) -> Refusal | None:
    """The part that differs from one request of a kind to the next."""
    if not 0 < request.owner <= MAX_OWNER:
        return Refusal.INVALID_REQUEST
    if not 0 < request.amount <= MAX_AMOUNT:
        return Refusal.INVALID_AMOUNT
    if not 0 < request.asset_id <= MAX_ASSET_ID:
        return Refusal.INVALID_ASSET
    most = MAX_CID_CHARS if request.space in (USER, OPERATOR) else MAX_KEY_CHARS
    if request.cid is not None and not well_formed_cid(request.cid, most):
        return Refusal.INVALID_REQUEST
    if request.lives_s is not None and not 0 < request.lives_s <= MAX_LIFE_S:
        return Refusal.INVALID_REQUEST
    if request.trace is None and request.terms is None and not request.detail:
        return None
    words = _words(request)
    if words and not (len(words) <= MAX_WORDS_CHARS and keepable(words)):
        return Refusal.INVALID_REQUEST
    return None


def _words(request: Request) -> str:
    """One text that no database can hold would end the batch in which it is written."""
    words = [request.trace or ""]
    for named in (request.detail, request.terms):
        if named:
            words += [*named, *named.values()]
    return "".join(words)


def cast_refusal(request: Request, flow: Flow, local: Container[str]) -> Refusal | None:
    """The part that holds for all requests between the same seats."""
    if request.parties.keys() != flow.cast:
        return Refusal.INVALID_PARTIES
    books = [party.book for party in request.parties.values()]
    if not all(len(book) <= MAX_BOOK_CHARS and keepable(book) for book in books):
        return Refusal.INVALID_PARTIES
    source, target = request.parties["source"], request.parties.get("target")
    if source == target:
        return Refusal.SAME_ACCOUNT
    if FEES in flow.roles:
        # One operation pays target and fees, and only a system of our database can do that.
        system = request.parties["target"].system
        if system not in local or request.parties[FEES] != Party(system, FEES_BOOK, request.owner):
            return Refusal.UNSUPPORTED_ACCOUNT_TYPE
    return None


def fee_veto(request: Request, flow: Flow) -> Refusal | None:
    """Speaks against a new transfer only: the schedule may have changed since a first request."""
    most = request.amount - 1 if FEES in flow.roles else 0
    return None if 0 <= request.fee <= most else Refusal.INVALID_FEE


def transfer_of(request: Request, flow: Flow, id_: UUID) -> Transfer:
    """The transfer that a request becomes, at its first state that asks something."""
    return new_transfer(request, new_kind(request, flow), id_)


def new_transfer(request: Request, kind: TransferKind, id_: UUID) -> Transfer:
    own = (request.owner, request.amount, request.parent, request.cid, GENESIS, request.trace)
    return Transfer(kind, id_, *own)


def new_kind(request: Request, flow: Flow) -> TransferKind:
    party_templates = party_templates_of(request.parties, request.owner)
    money, named = (request.asset_id, request.fee), (details_of(request.detail), request.space)
    return _born(flow, party_templates, money, named)


@lru_cache(4096)
def _born(
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
    ).but()
