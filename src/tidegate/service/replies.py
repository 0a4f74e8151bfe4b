"""What the routes reply, as types: the document is made from them."""

from typing import Any, Literal
from uuid import UUID

import msgspec

from tidegate.service import shapes


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


class Page(msgspec.Struct, frozen=True):
    transfers: list[shapes.TransferShape]
    next_cursor: str | None


class Result(msgspec.Struct, frozen=True):
    """What one item would have got by itself: a transfer, or a code, or both."""

    status: int
    code: str = ""
    detail: str = ""
    transfer: shapes.TransferShape | msgspec.UnsetType = msgspec.UNSET


class Results(msgspec.Struct, frozen=True):
    results: list[Result]


class FirstMade(msgspec.Struct, frozen=True):
    req_id: UUID
    status: Literal["committed", "pending", "failed"]
    message: str


class FirstShown(msgspec.Struct, frozen=True):
    req_id: UUID
    state: str
    created_at: int
    message: str
    code: str | None  # Why it was refused, if it has ended so.


class Balance(msgspec.Struct, frozen=True):
    account: str
    asset: str
    available: str
    frozen: str
    status: str


class Balances(msgspec.Struct, frozen=True):
    balances: list[Balance]


class AssetShape(msgspec.Struct, frozen=True):
    asset: str
    decimals: int
    status: str
    internal_transfer_enabled: bool
    min_transfer_amount: str
    max_transfer_amount: str | None


class Assets(msgspec.Struct, frozen=True):
    assets: list[AssetShape]


class DeskTransfer(msgspec.Struct, frozen=True):
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


class Crossed(DeskTransfer, frozen=True, kw_only=True):
    duplicate: bool


class DeskPage(msgspec.Struct, frozen=True):
    transfers: list[DeskTransfer]
    next_cursor: str | None


class StoryAnswer(msgspec.Struct, frozen=True):
    version: int
    path: list[str]
    verb: str
    answer: str
    reason: str
    evidence: dict[str, str]
    actor: str
    at: str
    hash: str


class StoryAttempt(msgspec.Struct, frozen=True):
    version: int
    retry: int
    reason: str
    at: str


class Story(msgspec.Struct, frozen=True):
    transfer: DeskTransfer
    history: list[StoryAnswer]
    attempts: list[StoryAttempt]


class StatusSet(msgspec.Struct, frozen=True):
    user_id: int
    account: str
    asset: str
    status: str


class Proposed(msgspec.Struct, frozen=True):
    resolution: int
    req_id: str


class Confirmed(msgspec.Struct, frozen=True):
    resolution: int
    outcome: str
    transfer: DeskTransfer


class Halts(msgspec.Struct, frozen=True):
    """Those in force; nothing moves while there is one."""

    halted: bool
    halts: list[shapes.HaltShape]


class Halted(msgspec.Struct, frozen=True):
    halted: bool
    halt: int  # The number of this one.
    halts: list[shapes.HaltShape]


class Resumed(msgspec.Struct, frozen=True):
    halted: bool  # Still, because other halts are in force.
    ended: list[shapes.HaltShape]
    halts: list[shapes.HaltShape]


class Progress(msgspec.Struct, frozen=True):
    """Of an audit, in transfers."""

    read: int
    of_about: int


class Alive(msgspec.Struct, frozen=True):
    status: Literal["ok"]


class Ready(msgspec.Struct, frozen=True):
    status: Literal["ok", "unavailable"]
    database: str = ""
    halted: bool = False
    halts: list[shapes.HaltShape] = []
    lanes: dict[str, Literal["open", "closed"]] = {}


class Document(msgspec.Struct, frozen=True, rename={"about": "info"}):
    openapi: str
    about: dict[str, Any]
    paths: dict[str, Any]
    components: dict[str, Any]
