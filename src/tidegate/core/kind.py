"""One row that says where its money is, and what it has in common with others of its kind."""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID
from weakref import WeakValueDictionary

import msgspec
from msgspec.structs import astuple, replace

GENESIS = bytes(32)  # What the first answer of a transfer is chained to.

Detail: TypeAlias = Mapping[str, str]
NO_DETAIL: Detail = {}

# Values with `gc=False` hold numbers, texts and other values only. They cannot be in a cycle, so
# that the collector need not look at them.


class Party(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Who plays a role: one owner's book in one system. The system's name is its lane."""

    system: str
    book: str
    owner: int


Parties: TypeAlias = Mapping[str, Party]


class PartyTemplate(NamedTuple):
    """A party, as transfers of one kind have it in common."""

    role: str
    system: str
    book: str
    owner: int | None  # None: the transfer's own.


class TransferKind(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """All that a decision, a question, a written row and its hash depend on, but for the fields
    that a transfer has for itself. What is decided about one transfer of a kind holds for all.

    Equal kinds are one object, so that they are compared and looked up by identity: `kind_of`.
    """

    flow: str
    state: str
    lane: str | None  # The system to be asked next; None at an end.
    party_templates: tuple[PartyTemplate, ...]
    asset_id: int
    fee: int = 0  # The part of the amount that goes to the role `fees`; fixed at creation.
    version: int = 0  # Counts answers. (id, version) names one question, for ever.
    attempts: int = 0  # Times that this question was put.
    retries: int = 0  # Times that any question had to be put again; never reset.
    paged: bool = False
    undoes: int | None = None  # The version whose DEBIT or HOLD is Done: what an undo names.
    details: tuple[tuple[str, str], ...] = ()
    space: str = ""  # Of the caller's key: which kind of caller gave it.
    error: str | None = None  # Why the last Rejected was given.
    expired: bool = False  # Past its state's deadline, when the database gave out this row.

    def but(self, **changes: Any) -> "TransferKind":
        fields = list(astuple(self))
        for name, value in changes.items():
            fields[_PLACES[name]] = value
        return kind_of(*fields)


_PLACES = {name: place for place, name in enumerate(TransferKind.__struct_fields__)}
_KINDS: WeakValueDictionary[tuple[object, ...], TransferKind] = WeakValueDictionary()


def kind_of(*fields: Any) -> TransferKind:
    """The one kind with these fields: all of them, in their order."""
    kind = _KINDS.get(fields)
    if kind is None:
        kind = _KINDS[fields] = TransferKind(*fields)
    return kind


def party_templates_of(parties: Parties, owner: int) -> tuple[PartyTemplate, ...]:
    """In the order of the roles, so that the same parties are the same seats."""
    party_templates = [
        PartyTemplate(role, who.system, who.book, None if who.owner == owner else who.owner)
        for role, who in parties.items()
    ]
    party_templates.sort()
    return tuple(party_templates)


def details_of(detail: Detail) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(detail.items())) if detail else ()


def parties_of(party_templates: tuple[PartyTemplate, ...], owner: int) -> dict[str, Party]:
    return {
        role: Party(system, book, owner if other is None else other)
        for role, system, book, other in party_templates
    }


class Transfer(msgspec.Struct, frozen=True, gc=False):
    """One row that says where its money is and whom to ask next."""

    kind: TransferKind
    id: UUID
    owner: int
    amount: int  # In the asset's smallest unit.
    parent: UUID | None = None
    cid: str | None = None  # The caller's key, if the caller gave one.
    head_hash: bytes = GENESIS
    trace: str | None = None
    created_us: int = 0
    updated_us: int = 0  # When the last answer was recorded, or the birth.
    waited_s: float = 0.0  # Since then, as the database saw it when it gave out this row.

    @property
    def flow(self) -> str:
        return self.kind.flow

    @property
    def state(self) -> str:
        return self.kind.state

    @property
    def lane(self) -> str | None:
        return self.kind.lane

    @property
    def asset_id(self) -> int:
        return self.kind.asset_id

    @property
    def fee(self) -> int:
        return self.kind.fee

    @property
    def version(self) -> int:
        return self.kind.version

    @property
    def attempts(self) -> int:
        return self.kind.attempts

    @property
    def retries(self) -> int:
        return self.kind.retries

    @property
    def paged(self) -> bool:
        return self.kind.paged

    @property
    def undoes(self) -> int | None:
        return self.kind.undoes

    @property
    def space(self) -> str:
        return self.kind.space

    @property
    def error(self) -> str | None:
        return self.kind.error

    @property
    def expired(self) -> bool:
        return self.kind.expired

    @property
    def parties(self) -> Parties:
        return parties_of(self.kind.party_templates, self.owner)

    @property
    def detail(self) -> Detail:
        return dict(self.kind.details)

    def but(self, **changes: Any) -> "Transfer":
        """The same transfer with some fields changed, its own or those of its kind."""
        if "parties" in changes or "owner" in changes:
            parties = changes.pop("parties", self.parties)
            changes["seats"] = party_templates_of(parties, changes.get("owner", self.owner))
        if "detail" in changes:
            changes["details"] = details_of(changes.pop("detail"))
        own = {name: changes.pop(name) for name in _OWN.intersection(changes)}
        kind = self.kind.but(**changes) if changes else self.kind
        return replace(self, kind=kind, **own)


_OWN = frozenset(Transfer.__struct_fields__) - {"kind"}


def transfer_with(parties: Parties, detail: Detail = NO_DETAIL, **fields: Any) -> Transfer:
    """A transfer out of all its fields, its own and those of its kind, by their names."""
    own = {name: fields.pop(name) for name in tuple(fields) if name in _OWN}
    party_templates, details = party_templates_of(parties, own["owner"]), details_of(detail)
    return Transfer(_NO_KIND.but(party_templates=party_templates, details=details, **fields), **own)


_NO_KIND = TransferKind("", "", None, (), 0)
