"""The rule that turns a reply of a remote account service into an answer.

| status | body | verdict |
|---|---|---|
| 200 | `{"success": true}` | Done |
| 200, 400, 422 | `{"error": a listed refusal}` | RefusedByCode |
| 200, 400, 409, 422 | `{"error": a Doubt}` | Unknown, with the alarm of that doubt |
| 409 | anything else | Unknown, and pages: the service knows the key with another body |
| any | another `req_id`, or none although `names_key` is set | Unknown, and pages |
| anything else | | Unknown |
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn, TypeAlias

import msgspec

from tidegate.core.answers import Alarm, Done, Unknown
from tidegate.core.refusals import Doubt, Reason, Refusal

REASON_CHARS = 200
REFUSING_STATUSES = frozenset({200, 400, 422})
CONFLICT = 409

# Left out on purpose: UNAUTHORIZED and FORBIDDEN concern our token and not the money, and limits
# of rate, count and amount are temporary. A setting may add codes.
DEFAULT_REFUSALS: frozenset[str] = frozenset(
    {
        Reason.INSUFFICIENT_BALANCE,
        Reason.ACCOUNT_FROZEN,
        Reason.ACCOUNT_DISABLED,
        Reason.SOURCE_ACCOUNT_NOT_FOUND,
        Reason.TARGET_ACCOUNT_NOT_FOUND,
        Reason.INVALID_AMOUNT,
        Refusal.PRECISION_OVERFLOW,
        Refusal.AMOUNT_TOO_SMALL,
        Refusal.AMOUNT_TOO_LARGE,
        Refusal.OVERFLOW,
        Refusal.INVALID_ASSET,
        Refusal.ASSET_SUSPENDED,
        Refusal.TRANSFER_NOT_ALLOWED,
        Refusal.SAME_ACCOUNT,
        Refusal.INVALID_ACCOUNT_TYPE,
        Refusal.UNSUPPORTED_ACCOUNT_TYPE,
        # The answer of a tombstone. Without it, a lost acknowledgement would be retried for ever.
        Reason.UNDONE,
        "Insufficient funds",
        "Account frozen",
        "Invalid user",
        "Invalid amount",
    }
)

ALARMS: Mapping[str, Alarm] = {
    Doubt.BUSY: Alarm.NONE,
    Doubt.KEY_REUSED: Alarm.PAGE,
    Doubt.RETIRED: Alarm.PAGE,
    Doubt.ALREADY_CLOSED: Alarm.PAGE,
    # Our history contains the debit and the service does not: one of the two books is wrong.
    Doubt.UNDO_UNFOUNDED: Alarm.HALT,
}


class RemoteReply(NamedTuple):
    """One HTTP reply. The body is None if it was too long, or encoded although we refuse that."""

    status: int
    body: bytes | None


class ReplyPolicy(NamedTuple):
    """The settings that `judge` needs to read a reply."""

    refusals: frozenset[str] = DEFAULT_REFUSALS
    secrets: tuple[str, ...] = ()  # Removed from quoted text: the service may repeat them.
    names_key: bool = False  # A reply without its key is Unknown.


class RefusedByCode(msgspec.Struct, frozen=True):
    """A refusal with a listed code. It is proof only if the service is certified as sticky."""

    reason: str


Verdict: TypeAlias = Done | RefusedByCode | Unknown


def judge(reply: RemoteReply, key: str, policy: ReplyPolicy) -> Verdict:
    """What a reply means for the operation with this key."""
    fields = None if reply.body is None else _fields(reply.body)
    alarm = Alarm.PAGE if reply.status == CONFLICT else Alarm.NONE
    status = f"HTTP {reply.status}"
    if fields is None:
        fault = "is too long or encoded" if reply.body is None else "is not a JSON object"
        return Unknown(f"{status}: the body {fault}", alarm)

    error = fields.get("error")
    if fields.get("req_id", None if policy.names_key else key) != key:
        # The service or a proxy mixed up two replies: this one is about another operation.
        return Unknown(f"{status}: the reply contains another req_id, or none", Alarm.PAGE)
    if reply.status not in REFUSING_STATUSES | {CONFLICT}:
        return Unknown(status)
    if isinstance(error, str) and error in ALARMS:
        return Unknown(f"{status}: {error}", max(alarm, ALARMS[error]))
    if reply.status == CONFLICT:
        return Unknown(f"{status}: {Doubt.KEY_REUSED}", alarm)
    if "status" in fields or {"success", "error"} <= fields.keys():
        # A body with success and error, or with a status besides, can be read in two ways.
        return Unknown(f"{status}: the reply is ambiguous")
    if fields.get("success") is True and reply.status == 200:
        return Done({"key": key})
    if isinstance(error, str) and error in policy.refusals:
        return RefusedByCode(error)
    if isinstance(error, str):
        return Unknown(quotable(f"{status}: not a listed refusal: " + error, policy.secrets))
    return Unknown(f"{status}: the reply contains neither success nor error")


def quotable(text: str, secrets: tuple[str, ...] = ()) -> str:
    """Text from outside, made safe to store: without our secrets, printable and short."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return "".join(letter if letter.isprintable() else "?" for letter in text[:REASON_CHARS])


def _fields(body: bytes) -> dict[str, Any] | None:
    """The members of a JSON object, or None for any other body."""
    try:
        value = json.loads(
            body.decode("utf-8"), object_pairs_hook=_unique_fields, parse_constant=_reject_constant
        )
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        # Reject duplicate names: another parser may have used the other one.
        raise ValueError("duplicate name")
    return fields


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
