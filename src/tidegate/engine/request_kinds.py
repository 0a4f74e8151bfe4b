"""What holds for all requests of a kind, worked out once: whether a transfer can come of them."""

from collections.abc import Container, Mapping
from typing import NamedTuple

from tidegate.core.flow import Flow
from tidegate.core.kind import TransferKind, details_of
from tidegate.core.refusals import Refusal
from tidegate.core.request import (
    FingerprintForm,
    Request,
    cast_refusal,
    fingerprint_form_of,
    new_kind,
    own_refusal,
)

MAX_KEPT = 4_096
MAX_SPELLINGS = 64  # Of one origin.


class RequestKind(NamedTuple):
    kind: TransferKind | None  # Of the transfers that they become, if they can.
    absent: Refusal | None  # The flow, or a system, is not here.
    refusal: Refusal | None  # Something else holds against all of them.
    local: bool  # Their first question is for a system of our own database.
    spellings: dict[
        object, FingerprintForm
    ]  # By their terms, if they have any, and by their lives.

    def fingerprint(self, request: Request) -> bytes:
        mark: object = request.lives_s
        if request.terms is not None:
            mark = tuple(request.terms.items())
        elif mark is not None:
            mark = str(mark)  # 5 and 5.0 are equal, but are spelled differently.
        spelling = self.spellings.get(mark)
        if spelling is None:
            spelling = fingerprint_form_of(request)
            if len(self.spellings) < MAX_SPELLINGS:
                self.spellings[mark] = spelling
        return spelling.fingerprint(request.owner, request.amount)


class RequestKinds:
    """By all that requests of a kind have in common, and nothing else."""

    def __init__(
        self, flows: Mapping[str, Flow], outside: Container[str], local: Container[str]
    ) -> None:
        self._flows, self._outside, self._local = flows, outside, local
        self._kept: dict[tuple[object, ...], RequestKind] = {}

    def of(self, request: Request) -> RequestKind:
        owner = request.owner
        # Parties in the order in which they came: sorted, they would be the same origin again.
        mark = (
            request.flow,
            request.asset_id,
            request.fee,
            details_of(request.detail),
            request.space,
            *[
                (role, who.system, who.book, None if who.owner == owner else who.owner)
                for role, who in request.parties.items()
            ],
        )
        found = self._kept.get(mark)
        if found is None:
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            found = self._kept[mark] = self._origin(request)
        return found

    def refusal(self, request: Request) -> Refusal | None:
        """Why this engine could not make such a transfer at all."""
        origin = self.of(request)
        return origin.absent or own_refusal(request) or origin.refusal

    def _origin(self, request: Request) -> RequestKind:
        flow = self._flows.get(request.flow)
        if flow is None:
            return _impossible(absent=Refusal.INVALID_REQUEST)
        if not self.has_systems(request):
            return _impossible(absent=Refusal.UNSUPPORTED_ACCOUNT_TYPE)
        if (refusal := cast_refusal(request, flow, self._local)) is not None:
            return _impossible(refusal=refusal)
        kind = new_kind(request, flow)
        return RequestKind(kind, None, None, local=kind.lane in self._local, spellings={})

    def has_systems(self, request: Request) -> bool:
        systems = {party.system for party in request.parties.values()}
        return all(system in self._outside or system in self._local for system in systems)


def _impossible(absent: Refusal | None = None, refusal: Refusal | None = None) -> RequestKind:
    return RequestKind(None, absent, refusal, local=False, spellings={})
