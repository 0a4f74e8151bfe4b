"""A request on its way, and how whoever made it is answered."""

from collections.abc import Sequence
from typing import Protocol, TypeAlias
from uuid import UUID

import msgspec

from tidegate.core.kind import Transfer, TransferKind
from tidegate.core.ports import StoreFault
from tidegate.core.refusals import Refusal
from tidegate.core.request import Request


class Receipt(msgspec.Struct, frozen=True):
    """The transfer that a request became, now or the first time it was made."""

    transfer: Transfer
    duplicate: bool = False


class ReplyTarget(Protocol):
    """Where an answer goes: a future of its own, or a place on a tray of many."""

    def done(self) -> bool: ...
    def set_result(self, said: Receipt | Refusal, /) -> None: ...
    def set_exception(self, fault: StoreFault, /) -> None: ...


class FollowTransfer(Protocol):
    """Lets a caller wait for the end of a transfer, or be answered by how far it is by then."""

    def __call__(
        self, answer: ReplyTarget, transfer: Transfer, wait_s: float, *, duplicate: bool = False
    ) -> None: ...


RequestResult: TypeAlias = (
    Receipt | Refusal | StoreFault
)  # Of one among many, whose fault is its own.


class PendingRequest(msgspec.Struct, eq=False):
    """One request on its way. Its id is fixed before the first try, and the same in all later."""

    request: Request
    kind: TransferKind  # Of the transfer that it becomes.
    answer: ReplyTarget
    fingerprint: bytes
    veto: Refusal | None = None  # It is new, and something speaks against it.
    wait_s: float | None = None  # How long the caller waits for the end; None: for no end at all.
    locks: int | None = None  # The owner whose accounts its creation will lock, if any.
    id: UUID | None = None
    followers: list["PendingRequest"] = []
    key: tuple[int, str] = (0, "")

    def __post_init__(self) -> None:
        request = self.request
        # Most are in the space without a prefix: their key is what the caller wrote.
        text = request.key if request.space else request.cid
        self.key = request.owner, text or ""

    def name(self, id_: UUID) -> None:
        """Give it its id, which is also its key if the caller gave none."""
        self.id = id_
        if self.request.cid is None:
            self.key = self.request.owner, str(id_)

    def matches(self, fingerprint: bytes) -> bool:
        return fingerprint in (self.fingerprint, self.request.older_fingerprint())

    @property
    def keys(self) -> Sequence[tuple[int, str]]:
        """Under which it may be known: its own key, and that of versions without key spaces."""
        request = self.request
        if request.space and request.cid:
            return self.key, (request.owner, request.cid)
        return (self.key,)


def grouped_by_key(batch: Sequence[PendingRequest]) -> list[PendingRequest]:
    """One request per key; whoever asks under the same key meanwhile follows the first.

    Followers are judged only when it is known what the key stands for: the first of a batch may
    be the stranger, and the transfer that exists already a follower's own.
    """
    first: dict[tuple[int, str], PendingRequest] = {}
    alone = []
    if any(pending.veto is not None for pending in batch):
        # One that may be created goes before one that may not.
        batch = sorted(batch, key=lambda pending: pending.veto is not None)
    for pending in batch:
        if pending.request.cid is None:
            alone.append(pending)
        elif (leader := first.setdefault(pending.key, pending)) is not pending:
            leader.followers.append(pending)
    return [*first.values(), *alone]


def answer(pending: PendingRequest, refusal: Refusal | StoreFault) -> None:
    for each in (pending, *pending.followers):
        reply(each, refusal)


def reply(pending: PendingRequest, result: Refusal | StoreFault) -> None:
    if pending.answer.done():
        return  # The caller has gone.
    if isinstance(result, StoreFault):
        pending.answer.set_exception(result)
    else:
        pending.answer.set_result(result)
