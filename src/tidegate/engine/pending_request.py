"""A request that is being written, and how its caller gets the reply."""

from collections.abc import Sequence
from typing import Protocol, TypeAlias
from uuid import UUID

import msgspec

from tidegate.core.kind import Transfer, TransferKind
from tidegate.core.ports import StoreFault
from tidegate.core.refusals import Refusal
from tidegate.core.request import Request


class Receipt(msgspec.Struct, frozen=True):
    """The transfer of a request. A duplicate request gets the transfer that already exists."""

    transfer: Transfer
    duplicate: bool = False


class ReplyTarget(Protocol):
    """Receives the reply to one request: a future, or one entry of a batch of replies."""

    def done(self) -> bool: ...
    def set_result(self, reply: Receipt | Refusal, /) -> None: ...
    def set_exception(self, fault: StoreFault, /) -> None: ...


class FollowTransfer(Protocol):
    """Reply with the ended transfer; if it does not end in time, reply with its last state."""

    def __call__(
        self, target: ReplyTarget, transfer: Transfer, wait_s: float, /, *, duplicate: bool = False
    ) -> None: ...


# The result of one request of a batch. A fault belongs to one request, so it is not raised.
RequestResult: TypeAlias = Receipt | Refusal | StoreFault


class PendingRequest(msgspec.Struct, eq=False):
    """A request without a reply. Its id is set before the first try; later tries use the same."""

    request: Request
    kind: TransferKind  # Of the transfer that it becomes.
    target: ReplyTarget
    fingerprint: bytes
    veto: Refusal | None = None  # The refusal if its key is new; a known key gets its transfer.
    wait_s: float | None = None  # How long the caller waits for the end. None: it does not wait.
    locks: int | None = None  # The owner whose accounts its creation locks, if any.
    id: UUID | None = None
    followers: list["PendingRequest"] = []  # Later requests of its batch with the same key.
    key: tuple[int, str] = (0, "")

    def __post_init__(self) -> None:
        request = self.request
        # Most requests are in the space without a prefix: their key is the caller's cid.
        text = request.key if request.space else request.cid
        self.key = request.owner, text or ""

    def assign_id(self, id_: UUID) -> None:
        """Set the id. It is also the key if the caller sent no cid."""
        self.id = id_
        if self.request.cid is None:
            self.key = self.request.owner, str(id_)

    def matches(self, fingerprint: bytes) -> bool:
        return fingerprint in (self.fingerprint, self.request.older_fingerprint())

    @property
    def keys(self) -> Sequence[tuple[int, str]]:
        """Keys under which it may be known: its own, and that of versions without key spaces."""
        request = self.request
        if request.space and request.cid:
            return self.key, (request.owner, request.cid)
        return (self.key,)


def grouped_by_key(batch: Sequence[PendingRequest]) -> list[PendingRequest]:
    """Return one request per key. Later requests with the same key become its followers.

    Followers are compared only after the store has returned the transfer of the key: it may match
    a follower although it does not match the first request of this batch.
    """
    first_by_key: dict[tuple[int, str], PendingRequest] = {}
    without_cid = []
    if any(pending.veto is not None for pending in batch):
        # Requests without a veto first: their transfer may be created.
        batch = sorted(batch, key=lambda pending: pending.veto is not None)
    for pending in batch:
        if pending.request.cid is None:
            without_cid.append(pending)
        elif (first := first_by_key.setdefault(pending.key, pending)) is not pending:
            first.followers.append(pending)
    return [*first_by_key.values(), *without_cid]


def reply_to_all(pending: PendingRequest, result: Refusal | StoreFault) -> None:
    """Send the same reply to a request and its followers."""
    for entry in (pending, *pending.followers):
        reply_to(entry, result)


def reply_to(pending: PendingRequest, result: Refusal | StoreFault) -> None:
    if pending.target.done():
        return  # The caller was cancelled.
    if isinstance(result, StoreFault):
        pending.target.set_exception(result)
    else:
        pending.target.set_result(result)
