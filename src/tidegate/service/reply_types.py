"""What the routes reply."""

from typing import Any, Literal
from uuid import UUID

import msgspec

from tidegate.service.request_types import FROM_TO


class Problem(msgspec.Struct, frozen=True):
    """An error (RFC 9457). When a transfer was made and then refused, it is named."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    retryable: bool
    request_id: str
    req_id: str = ""
    transfer_id: str = ""
    state: str = ""
    duplicate: bool = False


class HaltShape(msgspec.Struct, frozen=True):
    """A halt in force: who halted all transfers, and why."""

    id: int
    reason: str
    by: str
    at: str


class TransferShape(msgspec.Struct, frozen=True, rename=FROM_TO):
    """A transfer as its owner sees it. Both ids carry the same ULID."""

    transfer_id: str
    req_id: str
    source: str
    target: str
    asset: str
    amount: str
    state: str
    message: str
    cid: str | None
    created_at: str
    updated_at: str
    duplicate: bool = False
    code: str | None = None  # Why it was refused, if it has ended so.


class TransferPage(msgspec.Struct, frozen=True):
    transfers: list[TransferShape]
    next_cursor: str | None


class BatchItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of one item, as if it had been sent alone: a transfer, a code, or both."""

    status: int
    code: str = ""
    detail: str = ""
    transfer: TransferShape | msgspec.UnsetType = msgspec.UNSET


class BatchItems(msgspec.Struct, frozen=True):
    results: list[BatchItem]


class LegacyCreated(msgspec.Struct, frozen=True):
    req_id: UUID
    status: Literal["committed", "pending", "failed"]
    message: str


class LegacyTransfer(msgspec.Struct, frozen=True):
    req_id: UUID
    state: str
    created_at: int
    message: str
    code: str | None  # Why it was refused, if it has ended so.


class AccountBalance(msgspec.Struct, frozen=True):
    account: str
    asset: str
    available: str
    frozen: str
    status: str


class AccountBalances(msgspec.Struct, frozen=True):
    balances: list[AccountBalance]


class AssetShape(msgspec.Struct, frozen=True):
    asset: str
    decimals: int
    status: str
    internal_transfer_enabled: bool
    min_transfer_amount: str
    max_transfer_amount: str | None


class Assets(msgspec.Struct, frozen=True):
    assets: list[AssetShape]


class OperatorTransfer(msgspec.Struct, frozen=True):
    """A transfer as an operator sees it."""

    req_id: str
    user_id: int
    flow: str
    state: str
    lane: str | None
    asset: str
    amount: str
    parties: dict[str, str]
    cid: str | None
    version: int
    attempts: int
    retries: int
    paged: bool
    error: str | None
    created_at: str
    updated_at: str


class ExternalTransferMade(OperatorTransfer, frozen=True, kw_only=True):
    duplicate: bool


class OperatorPage(msgspec.Struct, frozen=True):
    transfers: list[OperatorTransfer]
    next_cursor: str | None


class TransferAnswer(msgspec.Struct, frozen=True):
    version: int
    path: list[str]
    verb: str
    answer: str
    reason: str
    evidence: dict[str, str]
    actor: str
    at: str
    hash: str


class TransferAttempt(msgspec.Struct, frozen=True):
    version: int
    retry: int
    reason: str
    at: str


class TransferHistory(msgspec.Struct, frozen=True):
    transfer: OperatorTransfer
    history: list[TransferAnswer]
    attempts: list[TransferAttempt]


class AccountStatusSet(msgspec.Struct, frozen=True):
    user_id: int
    account: str
    asset: str
    status: str


class ResolutionProposed(msgspec.Struct, frozen=True):
    resolution: int
    req_id: str


class ResolutionConfirmed(msgspec.Struct, frozen=True):
    resolution: int
    outcome: str
    transfer: OperatorTransfer


class HaltList(msgspec.Struct, frozen=True):
    """Those in force; nothing moves while there is one."""

    halted: bool
    halts: list[HaltShape]


class HaltAdded(msgspec.Struct, frozen=True):
    halted: bool
    halt: int  # The number of this one.
    halts: list[HaltShape]


class HaltsEnded(msgspec.Struct, frozen=True):
    halted: bool  # Still, because other halts are in force.
    ended: list[HaltShape]
    halts: list[HaltShape]


class AuditProgressShown(msgspec.Struct, frozen=True):
    """Of an audit, in transfers."""

    read: int
    of_about: int


class Liveness(msgspec.Struct, frozen=True):
    status: Literal["ok"]


class Readiness(msgspec.Struct, frozen=True):
    status: Literal["ok", "unavailable"]
    database: str | msgspec.UnsetType = msgspec.UNSET
    halted: bool | msgspec.UnsetType = msgspec.UNSET
    halts: list[HaltShape] | msgspec.UnsetType = msgspec.UNSET
    lanes: dict[str, Literal["open", "closed"]] | msgspec.UnsetType = msgspec.UNSET


class OpenApiDocument(msgspec.Struct, frozen=True, rename={"about": "info"}):
    openapi: str
    about: dict[str, Any]
    servers: list[dict[str, str]]
    tags: list[dict[str, str]]
    paths: dict[str, Any]
    components: dict[str, Any]


class PoolTransfer(msgspec.Struct, frozen=True):
    """A transfer of the pool. Times are ISO 8601, the amount is a decimal string."""

    transfer_id: UUID
    guild_id: int
    initiator_id: int
    target_id: int
    amount: str
    status: str
    checks: dict[str, int]
    retry_count: int
    round: int
    metadata: dict[str, Any]
    expires_at: str
    created_at: str
    updated_at: str
    cid: str | None = None
    duplicate: bool = False


class PoolPage(msgspec.Struct, frozen=True):
    transfers: list[PoolTransfer]
    next_offset: int | None
