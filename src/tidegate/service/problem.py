"""Errors as RFC 9457 problems: a stable code, whether to try again, never a stack or SQL."""

from collections.abc import Mapping
from http import HTTPStatus

from tidegate.core.refusals import Reason, Refusal
from tidegate.service.http import HttpReply, json_reply

SYSTEM_ERROR, NOT_FOUND, METHOD_NOT_ALLOWED = "SYSTEM_ERROR", "NOT_FOUND", "METHOD_NOT_ALLOWED"
PAYLOAD_TOO_LARGE = "PAYLOAD_TOO_LARGE"
UNAVAILABLE = "UNAVAILABLE"  # A system outside gave no word: what it did is not known.
DATABASE_UNAVAILABLE = "DATABASE_UNAVAILABLE"
OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"  # The engine died over it: it may have been accepted.
TRANSFER_REFUSED = "TRANSFER_REFUSED"  # For reasons that are no code of ours.
MEDIA_TYPE = "application/problem+json"

# The shape of a request is wrong: 400. The request is well-formed and refused: 422.
STATUS: Mapping[str, int] = {
    Refusal.UNAUTHORIZED: 401,
    Refusal.FORBIDDEN: 403,
    Refusal.IDEMPOTENCY_MISMATCH: 422,
    Refusal.INVALID_REQUEST: 400,
    Refusal.INVALID_PARTIES: 400,
    Refusal.SAME_ACCOUNT: 400,
    Refusal.INVALID_ACCOUNT_TYPE: 400,
    Refusal.UNSUPPORTED_ACCOUNT_TYPE: 400,
    Refusal.INVALID_ASSET: 400,
    Refusal.ASSET_SUSPENDED: 422,
    Refusal.TRANSFER_NOT_ALLOWED: 422,
    Refusal.INVALID_AMOUNT: 400,
    Refusal.INVALID_FEE: 422,
    Refusal.PRECISION_OVERFLOW: 400,
    Refusal.AMOUNT_TOO_SMALL: 422,
    Refusal.AMOUNT_TOO_LARGE: 422,
    Refusal.OVERFLOW: 400,
    Refusal.RATE_LIMIT_EXCEEDED: 429,
    Refusal.DAILY_LIMIT_EXCEEDED: 429,
    Refusal.DAILY_AMOUNT_EXCEEDED: 429,
    Refusal.HALTED: 503,
    Refusal.TOO_LATE: 503,
    Refusal.EXPIRED: 422,
    Refusal.OVERLOADED: 503,
    Refusal.KEY_REFUSED: 422,
    SYSTEM_ERROR: 500,
    UNAVAILABLE: 503,
    OUTCOME_UNKNOWN: 503,
    DATABASE_UNAVAILABLE: 503,
    NOT_FOUND: 404,
    METHOD_NOT_ALLOWED: 405,
    PAYLOAD_TOO_LARGE: 413,
    TRANSFER_REFUSED: 422,
}
TRY_AGAIN = frozenset({429, 500, 503})

DETAILS: Mapping[str, str] = {
    Refusal.UNAUTHORIZED: "a valid bearer token is needed",
    Refusal.FORBIDDEN: "this token may not do this",
    Refusal.IDEMPOTENCY_MISMATCH: "this cid was used for another request; choose a new one",
    Refusal.INVALID_PARTIES: "the parties are not the roles of the flow",
    Refusal.SAME_ACCOUNT: "from and to are the same account",
    Refusal.INVALID_ACCOUNT_TYPE: "an account is FUNDING or SPOT",
    Refusal.UNSUPPORTED_ACCOUNT_TYPE: "this account type is not offered",
    Refusal.INVALID_ASSET: "there is no such asset; see /api/v1/assets",
    Refusal.ASSET_SUSPENDED: "this asset is suspended",
    Refusal.TRANSFER_NOT_ALLOWED: "this asset cannot be transferred internally",
    Refusal.INVALID_AMOUNT: "amount must be a positive decimal string such as «12.50»",
    Refusal.INVALID_FEE: "the fee is from 0 to below the amount, in a flow that takes one",
    Refusal.PRECISION_OVERFLOW: "amount has more decimals than the asset",
    Refusal.AMOUNT_TOO_SMALL: "amount is below the asset's minimum",
    Refusal.AMOUNT_TOO_LARGE: "amount is above the asset's maximum",
    Refusal.OVERFLOW: "amount is larger than any transfer can be",
    Refusal.HALTED: "transfers are halted; an operator will resume them",
    Refusal.OVERLOADED: "too many requests are waiting; nothing was accepted",
    Refusal.TOO_LATE: "the request waited too long; nothing was accepted",
    Refusal.EXPIRED: "the request expired before it was taken; nothing has moved",
    Refusal.KEY_REFUSED: "the request with this cid was refused before; use a new cid",
    SYSTEM_ERROR: "something failed on our side; nothing was accepted",
    UNAVAILABLE: "a system does not answer; look before you ask again",
    DATABASE_UNAVAILABLE: "the database takes no requests now; nothing was accepted",
    OUTCOME_UNKNOWN: "it is not known whether this was done: repeat it with the same cid, or look",
    NOT_FOUND: "there is nothing here",
    METHOD_NOT_ALLOWED: "this method is not offered here",
    PAYLOAD_TOO_LARGE: "the body is larger than this route takes",
    TRANSFER_REFUSED: "the transfer was refused and has ended; no money has moved",
}
DEFAULT_STATUS = 422  # A system's own reason: well-formed, and refused.


def code_of(reason: str | None) -> str:
    """A reason of ours as a stable code. A person's or a stranger's words are not one."""
    ours = reason in Reason.__members__ or reason in Refusal.__members__
    return str(reason) if ours else TRANSFER_REFUSED


def problem(
    code: str,
    request_id: str,
    detail: str = "",
    more: Mapping[str, object] | None = None,
    headers: Mapping[str, str] | None = None,
) -> HttpReply:
    status = STATUS.get(code, DEFAULT_STATUS)
    body = {
        "type": f"https://tidegate.invalid/problems/{code.lower()}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail or DETAILS.get(code, "the request was refused"),
        "code": code,
        # Without a key, a repeat of what may have been done would do it twice.
        "retryable": status in TRY_AGAIN and code != OUTCOME_UNKNOWN,
        "request_id": request_id,
        **(more or {}),
    }
    said = {**(headers or {}), "X-Request-Id": request_id}
    if status == HTTPStatus.UNAUTHORIZED:
        said["WWW-Authenticate"] = "Bearer"
    if status in TRY_AGAIN:
        said.setdefault("Retry-After", "1")
    return json_reply(body, status, said, MEDIA_TYPE)
