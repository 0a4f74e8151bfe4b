"""The bodies of requests. Bounds that have a code of their own are only described here."""

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from tidegate.core.money import MAX_AMOUNT_CHARS
from tidegate.core.ports import MAX_HALTS
from tidegate.core.request import MAX_CID_CHARS, MAX_OWNER

MAX_BATCH = 1_000
MAX_REASON = 500
MAX_POOL_HOURS = 8_784
FROM_TO = {"source": "from", "target": "to"}
ACCOUNTS = ("FUNDING", "SPOT", "FUTURE", "MARGIN")
LEGACY_ACCOUNTS = ("funding", "trading")

# What `extra_json_schema` describes is checked later, item by item, and refused with its own code:
# INVALID_AMOUNT, INVALID_ACCOUNT_TYPE and so on. All other bounds are checked as the body is read.
Amount: TypeAlias = Annotated[
    str,
    Meta(
        description="A decimal string, more than zero, with no more decimals than the asset.",
        examples=["12.50"],
        extra_json_schema={
            "pattern": "^(0|[1-9][0-9]*)(\\.[0-9]+)?$",
            "maxLength": MAX_AMOUNT_CHARS,
        },
    ),
]
Points: TypeAlias = Annotated[
    str,
    Meta(
        description="Whole points, more than zero.",
        examples=["100"],
        extra_json_schema={"pattern": "^[1-9][0-9]*$", "maxLength": MAX_AMOUNT_CHARS},
    ),
]
AssetCode: TypeAlias = Annotated[str, Meta(description="See /api/v1/assets.", examples=["USDT"])]
Cid: TypeAlias = Annotated[
    str,
    Meta(
        description="The caller's own id. The same cid is the same transfer, made once.",
        examples=["my-first"],
        extra_json_schema={"minLength": 1, "maxLength": MAX_CID_CHARS, "pattern": "^[ -~]*$"},
    ),
]
AccountName: TypeAlias = Annotated[
    str, Meta(examples=["FUNDING"], extra_json_schema={"enum": list(ACCOUNTS)})
]
TargetName: TypeAlias = Annotated[
    str, Meta(examples=["SPOT"], extra_json_schema={"enum": list(ACCOUNTS)})
]
LegacySource: TypeAlias = Annotated[
    str, Meta(examples=["funding"], extra_json_schema={"enum": list(LEGACY_ACCOUNTS)})
]
LegacyTarget: TypeAlias = Annotated[
    str, Meta(examples=["trading"], extra_json_schema={"enum": list(LEGACY_ACCOUNTS)})
]
OwnUserId: TypeAlias = Annotated[
    int,
    Meta(
        description="The user of the token. If it is given, it must be that user.",
        examples=[4001],
        extra_json_schema={"minimum": 1, "maximum": MAX_OWNER},
    ),
]
UserId: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_OWNER, examples=[4001])]
Reason: TypeAlias = Annotated[
    str, Meta(min_length=1, max_length=MAX_REASON, examples=["a planned test"])
]


class TransferBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename=FROM_TO):
    """`POST /api/v1/internal_transfer`."""

    source: AccountName
    target: TargetName
    asset: AssetCode
    amount: Amount
    cid: Cid | None = None
    user_id: OwnUserId | None = None


class BatchBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    transfers: Annotated[list[TransferBody], Meta(min_length=1, max_length=MAX_BATCH)]


class LegacyTransferBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename=FROM_TO):
    """`POST /api/v1/transfer`: the same, with the older names of the accounts."""

    source: LegacySource
    target: LegacyTarget
    asset: AssetCode
    amount: Amount
    cid: Cid | None = None
    user_id: OwnUserId | None = None


class ExternalTransferBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    user_id: UserId
    account: AccountName
    asset: AssetCode
    amount: Amount
    cid: Cid


class StatusBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    user_id: UserId
    account: AccountName
    asset: AssetCode
    status: Annotated[Literal["ACTIVE", "FROZEN", "DISABLED"], Meta(examples=["FROZEN"])]


class AssetBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is not given stays as it is."""

    status: Annotated[Literal["ACTIVE", "SUSPENDED"], Meta(examples=["SUSPENDED"])] | None = None
    internal_transfer_enabled: bool | None = None
    min_transfer_amount: str | None = None
    max_transfer_amount: (
        Annotated[str, Meta(description="An empty string means no maximum.")] | None
    ) = None


class ResolveBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one person states about a stuck question."""

    version: Annotated[int, Meta(ge=0, examples=[1])]
    answer: Annotated[Literal["done", "rejected", "suspense"], Meta(examples=["done"])]
    reason: Reason
    evidence: Annotated[dict[str, str], Meta(examples=[{"ticket": "OPS-17"}])]


class ReasonBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reason: Reason


HaltNumber: TypeAlias = Annotated[int, Meta(ge=1, le=2**63 - 1)]


class ResumeBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reason: Reason
    # Which halts to end. All that are in force, if it is not given.
    halts: Annotated[list[HaltNumber], Meta(min_length=1, max_length=MAX_HALTS)] | None = None


class PoolBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`POST /api/v1/pool_transfers`. The caller is the initiator."""

    guild_id: Annotated[int, Meta(ge=1, le=MAX_OWNER, examples=[1])]
    target_id: Annotated[int, Meta(ge=1, le=MAX_OWNER, examples=[4002])]
    amount: Points
    reason: Reason | None = None
    cid: Cid | None = None
    expires_hours: Annotated[float, Meta(gt=0, le=MAX_POOL_HOURS, examples=[24])] | None = None
