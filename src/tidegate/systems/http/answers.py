"""What a reply of a remote account service means: a pure rule, and the only one.

| status | body | verdict |
|---|---|---|
| 200 | `{"success": true}` | Done |
| 200, 400, 422 | `{"error": one of the white-list}` | Refused |
| 200, 400, 409, 422 | `{"error": a Doubt}` | Unknown, with that doubt's alarm |
| 409 | anything else | Unknown, and pages: the key is known there with another body |
| any | another key as its `req_id`, or none from a service that names it | Unknown, and pages |
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

# Left out on purpose: UNAUTHORIZED and FORBIDDEN speak of our token and not of the money, and
# the limits of rate, count and amount pass by themselves. A setting may add what is missing.
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
        # What a tombstone says. Without it, a lost acknowledgement would leave us asking for ever.
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
    # Our history holds the debit and the service does not: one of the two books is wrong.
    Doubt.UNDO_UNFOUNDED: Alarm.HALT,
}


class RemoteReply(NamedTuple):
    """One HTTP answer. The body is None where it was too long, or encoded though not asked to."""

    status: int
    body: bytes | None


class ReplyPolicy(NamedTuple):
    """What the meaning of a reply depends on besides the reply."""

    refusals: frozenset[str] = DEFAULT_REFUSALS
    secrets: tuple[str, ...] = ()  # Never quoted, should the service repeat them to us.
    names_key: bool = False  # An answer without its key is not believed.


class RefusedByCode(msgspec.Struct, frozen=True):
    """A white-listed «no». Whether it proves anything depends on the service that said it."""

    reason: str


Verdict: TypeAlias = Done | RefusedByCode | Unknown


def judge(reply: RemoteReply, key: str, terms: ReplyPolicy) -> Verdict:
    """What a service said about the operation with this key."""
    fields = None if reply.body is None else _fields(reply.body)
    alarm = Alarm.PAGE if reply.status == CONFLICT else Alarm.NONE
    said = f"HTTP {reply.status}"
    if fields is None:
        kind = "a body that cannot be read" if reply.body is None else "no JSON object"
        return Unknown(f"{said}: {kind}", alarm)

    error = fields.get("error")
    if fields.get("req_id", None if terms.names_key else key) != key:
        # Somebody mixed up two answers, and whatever this one says is about other money.
        return Unknown(f"{said}: the answer names another key, or none", Alarm.PAGE)
    if reply.status not in REFUSING_STATUSES | {CONFLICT}:
        return Unknown(said)
    if isinstance(error, str) and error in ALARMS:
        return Unknown(f"{said}: {error}", max(alarm, ALARMS[error]))
    if reply.status == CONFLICT:
        return Unknown(f"{said}: {Doubt.KEY_REUSED}", alarm)
    if "status" in fields or {"success", "error"} <= fields.keys():
        # «Success, pending» and «no success, and this error» can both be read in two ways.
        return Unknown(f"{said}: an answer that says more than one thing")
    if fields.get("success") is True and reply.status == 200:
        return Done({"key": key})
    if isinstance(error, str) and error in terms.refusals:
        return RefusedByCode(error)
    if isinstance(error, str):
        return Unknown(quotable(f"{said}: not white-listed: " + error, terms.secrets))
    return Unknown(f"{said}: neither success nor error")


def quotable(text: str, secrets: tuple[str, ...] = ()) -> str:
    """Text of a stranger, made fit to be kept: no secret of ours, printable, and short."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return "".join(letter if letter.isprintable() else "?" for letter in text[:REASON_CHARS])


def _fields(body: bytes) -> dict[str, Any] | None:
    """The members of a JSON object, or None if it is anything else."""
    try:
        found = json.loads(
            body.decode("utf-8"), object_pairs_hook=_once_each, parse_constant=_no_number
        )
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        # Two parsers may keep different ones of two members with the same name.
        raise ValueError("a name occurs twice")
    return fields


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
