"""Checks that hold for all requests of a kind, computed once and cached."""

from collections.abc import Container, Mapping
from typing import NamedTuple

from tidegate.core.flow import Flow
from tidegate.core.kind import TransferKind, details_of
from tidegate.core.refusals import Refusal
from tidegate.core.request import (
    FingerprintForm,
    Request,
    fields_refusal,
    fingerprint_form_of,
    new_kind,
    parties_refusal,
)

MAX_CACHED = 4_096
MAX_FORMS = 64  # Fingerprint forms cached for one kind of request.


class RequestKind(NamedTuple):
    """What requests have in common whose flow, asset, fee, details, space and parties agree."""

    transfer_kind: (
        TransferKind | None
    )  # Of the transfers that they become. None: they are all refused.
    unsupported: Refusal | None  # Why, if this process lacks their flow or one of their systems.
    refusal: Refusal | None  # Why, if something else is wrong with all of them.
    local: bool  # Their first question is for a system in our own database.
    fingerprint_forms: dict[object, FingerprintForm]  # By their terms, or by their life.

    def fingerprint(self, request: Request) -> bytes:
        key: object = request.lives_s
        if request.terms is not None:
            key = tuple(request.terms.items())
        elif key is not None:
            key = str(key)  # 5 and 5.0 are equal, but have different fingerprints.
        form = self.fingerprint_forms.get(key)
        if form is None:
            form = fingerprint_form_of(request)
            if len(self.fingerprint_forms) < MAX_FORMS:
                self.fingerprint_forms[key] = form
        return form.fingerprint(request.owner, request.amount)


class RequestKinds:
    """A cache of request kinds, by exactly those fields that requests of a kind share."""

    def __init__(
        self, flows: Mapping[str, Flow], outside: Container[str], local: Container[str]
    ) -> None:
        self._flows, self._outside, self._local = flows, outside, local
        self._cached: dict[tuple[object, ...], RequestKind] = {}

    def of(self, request: Request) -> RequestKind:
        owner = request.owner
        # Parties are not sorted: in another order they only make another entry with equal content.
        key = (
            request.flow,
            request.asset_id,
            request.fee,
            details_of(request.detail),
            request.space,
            *[
                (role, party.system, party.book, None if party.owner == owner else party.owner)
                for role, party in request.parties.items()
            ],
        )
        kind = self._cached.get(key)
        if kind is None:
            if len(self._cached) >= MAX_CACHED:
                self._cached.clear()
            kind = self._cached[key] = self._compute(request)
        return kind

    def refusal(self, request: Request) -> Refusal | None:
        """Why this engine cannot make a transfer of such a request. None: it can."""
        kind = self.of(request)
        return kind.unsupported or fields_refusal(request) or kind.refusal

    def _compute(self, request: Request) -> RequestKind:
        flow = self._flows.get(request.flow)
        if flow is None:
            return _refused_kind(unsupported=Refusal.INVALID_REQUEST)
        if not self.has_systems(request):
            return _refused_kind(unsupported=Refusal.UNSUPPORTED_ACCOUNT_TYPE)
        if (refusal := parties_refusal(request, flow, self._local)) is not None:
            return _refused_kind(refusal=refusal)
        kind = new_kind(request, flow)
        return RequestKind(kind, None, None, local=kind.lane in self._local, fingerprint_forms={})

    def has_systems(self, request: Request) -> bool:
        """Whether this process has the systems of all parties."""
        systems = {party.system for party in request.parties.values()}
        return all(system in self._outside or system in self._local for system in systems)


def _refused_kind(
    unsupported: Refusal | None = None, refusal: Refusal | None = None
) -> RequestKind:
    return RequestKind(None, unsupported, refusal, local=False, fingerprint_forms={})
