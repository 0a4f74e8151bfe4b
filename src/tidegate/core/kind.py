"""A transfer and its kind: the fields that decide what happens to it next."""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID
from weakref import WeakValueDictionary

import msgspec
from msgspec.structs import astuple, replace

GENESIS = bytes(32)  # The first hash of a transfer's history is chained to this.

Detail: TypeAlias = Mapping[str, str]
NO_DETAIL: Detail = {}

# Values with `gc=False` contain only numbers, texts and other values. They cannot be part of a
# reference cycle, so the garbage collector need not visit them.


class Party(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One book of one owner in one system. The name of the system is also its lane."""

    system: str
    book: str
    owner: int


Parties: TypeAlias = Mapping[str, Party]


class PartyTemplate(NamedTuple):
    """A role and its party, as all transfers of one kind share them."""

    role: str
    system: str
    book: str
    owner: int | None  # None: the owner of the transfer.


class TransferKind(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """The fields that many transfers share. What is decided for one of them holds for all.

    A decision, a question, a stored row and its hash depend on these fields and on the few that
    `Transfer` adds. Equal kinds are one object (see `kind_of`), so they are compared by identity.
    """

    flow: str
    state: str
    lane: str | None  # The system to ask next. None at an end.
    party_templates: tuple[PartyTemplate, ...]
    asset_id: int
    fee: int = 0  # The part of the amount for the role `fees`. It is fixed at creation.
    version: int = 0  # Counts answers. (id, version) names one question for ever.
    attempts: int = 0  # How often this question was asked.
    retries: int = 0  # How often any question had to be asked again. Never reset.
    paged: bool = False
    undoes: int | None = None  # The version of the latest Done that took money: undos name it.
    details: tuple[tuple[str, str], ...] = ()
    space: str = ""  # The key space of `cid`: one for each sort of caller.
    error: str | None = None  # The reason of the last Rejected.
    expired: bool = False  # The deadline of its state had passed when this row was read.

    def replace(self, **changes: Any) -> "TransferKind":
        fields = list(astuple(self))
        for name, value in changes.items():
            fields[_INDEX_OF[name]] = value
        return kind_of(*fields)


_INDEX_OF = {name: index for index, name in enumerate(TransferKind.__struct_fields__)}
_KINDS: WeakValueDictionary[tuple[object, ...], TransferKind] = WeakValueDictionary()


def kind_of(*fields: Any) -> TransferKind:
    """The one object for these fields: all fields, in the order of their declaration."""
    kind = _KINDS.get(fields)
    if kind is None:
        kind = _KINDS[fields] = TransferKind(*fields)
    return kind


def party_templates_of(parties: Parties, owner: int) -> tuple[PartyTemplate, ...]:
    """The templates in the order of their roles, so that equal parties give equal templates."""
    templates = [
        PartyTemplate(role, party.system, party.book, None if party.owner == owner else party.owner)
        for role, party in parties.items()
    ]
    templates.sort()
    return tuple(templates)


def details_of(detail: Detail) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(detail.items())) if detail else ()


def parties_of(party_templates: tuple[PartyTemplate, ...], owner: int) -> dict[str, Party]:
    return {
        role: Party(system, book, owner if other_owner is None else other_owner)
        for role, system, book, other_owner in party_templates
    }


class Transfer(msgspec.Struct, frozen=True, gc=False):
    """One row of `transfers`: where its money is, and which system to ask next."""

    kind: TransferKind
    id: UUID
    owner: int
    amount: int  # In the asset's smallest unit.
    parent: UUID | None = None
    cid: str | None = None  # The idempotency key of the caller, if any.
    head_hash: bytes = GENESIS
    trace: str | None = None
    created_us: int = 0
    updated_us: int = 0  # When it was created, or when its last answer was recorded.
    waited_s: float = 0.0  # Seconds from then until the database returned this row.

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

    def replace(self, **changes: Any) -> "Transfer":
        """The same transfer with some fields changed: its own, or those of its kind."""
        if "parties" in changes or "owner" in changes:
            parties = changes.pop("parties", self.parties)
            owner = changes.get("owner", self.owner)
            changes["party_templates"] = party_templates_of(parties, owner)
        if "detail" in changes:
            changes["details"] = details_of(changes.pop("detail"))
        own = {name: changes.pop(name) for name in _OWN.intersection(changes)}
        kind = self.kind.replace(**changes) if changes else self.kind
        return replace(self, kind=kind, **own)


_OWN = frozenset(Transfer.__struct_fields__) - {"kind"}


def transfer_with(parties: Parties, detail: Detail = NO_DETAIL, **fields: Any) -> Transfer:
    """Build a transfer from all its fields by name: its own, and those of its kind."""
    own = {name: fields.pop(name) for name in tuple(fields) if name in _OWN}
    templates, details = party_templates_of(parties, own["owner"]), details_of(detail)
    kind = _EMPTY_KIND.replace(party_templates=templates, details=details, **fields)
    return Transfer(kind, **own)


_EMPTY_KIND = TransferKind("", "", None, (), 0)
