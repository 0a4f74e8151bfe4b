"""What holds for all requests of a kind, worked out once: whether a transfer can come of them."""

from collections.abc import Container, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from tidegate.core.flow import Flow
from tidegate.core.refusals import Refusal
from tidegate.core.request import (
    Request,
    Spelling,
    cast_refusal,
    kind_born,
    own_refusal,
    spelling_of,
)
from tidegate.core.transfer import Kind, details_of

MAX_KEPT = 4_096


class Origin(NamedTuple):
    kind: Kind | None  # Of the transfers that they become, if they can.
    absent: Refusal | None  # The flow, or a system, is not here.
    refusal: Refusal | None  # Something else holds against all of them.
    local: bool  # Their first question is for a system of our own database.
    spelling: Spelling | None = None  # Of those without terms and life of their own.

    def fingerprint(self, request: Request) -> bytes:
        if self.spelling is None or request.terms is not None or request.lives_s is not None:
            return request.fingerprint()
        return self.spelling.fingerprint(request.owner, request.amount)


class Origins:
    """By all that requests of a kind have in common, and nothing else."""

    def __init__(
        self, flows: Mapping[str, Flow], outside: Container[str], local: Container[str]
    ) -> None:
        self._flows, self._outside, self._local = flows, outside, local
        self._kept: dict[tuple[object, ...], Origin] = {}

    def of(self, request: Request) -> Origin:
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

    def _origin(self, request: Request) -> Origin:
        flow = self._flows.get(request.flow)
        if flow is None:
            return Origin(None, Refusal.INVALID_REQUEST, None, local=False)
        if not self.has_systems(request):
            return Origin(None, Refusal.UNSUPPORTED_ACCOUNT_TYPE, None, local=False)
        if (refusal := cast_refusal(request, flow, self._local)) is not None:
            return Origin(None, None, refusal, local=False)
        kind = kind_born(request, flow)
        spelling = spelling_of(replace(request, terms=None, lives_s=None))
        return Origin(kind, None, None, local=kind.lane in self._local, spelling=spelling)

    def has_systems(self, request: Request) -> bool:
        systems = {party.system for party in request.parties.values()}
        return all(system in self._outside or system in self._local for system in systems)
