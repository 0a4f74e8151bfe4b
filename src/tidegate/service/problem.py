"""Errors as RFC 9457 problems: a stable code and whether to retry, never a stack trace or SQL."""

from collections.abc import Mapping
from http import HTTPStatus

from tidegate.core.refusals import Reason, Refusal
from tidegate.service.http import HttpReply, json_reply

SYSTEM_ERROR, NOT_FOUND, METHOD_NOT_ALLOWED = "SYSTEM_ERROR", "NOT_FOUND", "METHOD_NOT_ALLOWED"
PAYLOAD_TOO_LARGE = "PAYLOAD_TOO_LARGE"
UNAVAILABLE = "UNAVAILABLE"  # An external system did not answer: the result is unknown.
DATABASE_UNAVAILABLE = "DATABASE_UNAVAILABLE"
OUTCOME_UNKNOWN = (
    "OUTCOME_UNKNOWN"  # The engine failed during the request: it may have been accepted.
)
TRANSFER_REFUSED = "TRANSFER_REFUSED"  # The reason is a system's or a person's own text.
MEDIA_TYPE = "application/problem+json"

# 400 if the request is malformed, 422 if it is well-formed and refused.
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
    Refusal.UNAUTHORIZED: "a valid bearer token is required",
    Refusal.FORBIDDEN: "the role or the user of this token does not allow this request",
    Refusal.IDEMPOTENCY_MISMATCH: "this cid was used for another request; choose a new one",
    Refusal.INVALID_PARTIES: "send exactly the roles that the flow requires, with valid books",
    Refusal.SAME_ACCOUNT: "from and to are the same account",
    Refusal.INVALID_ACCOUNT_TYPE: "the account must be FUNDING or SPOT",
    Refusal.UNSUPPORTED_ACCOUNT_TYPE: "this account type cannot be used here; use FUNDING or SPOT",
    Refusal.INVALID_ASSET: "the asset does not exist; see /api/v1/assets",
    Refusal.ASSET_SUSPENDED: "transfers of this asset are suspended for now; try later",
    Refusal.TRANSFER_NOT_ALLOWED: "transfers between own accounts are not enabled for this asset",
    Refusal.INVALID_AMOUNT: "amount must be a positive decimal string such as '12.50'",
    Refusal.INVALID_FEE: "the fee must be at least 0 and below the amount, in a flow with a fee",
    Refusal.PRECISION_OVERFLOW: "amount has more decimals than the asset",
    Refusal.AMOUNT_TOO_SMALL: "amount is below the asset's minimum",
    Refusal.AMOUNT_TOO_LARGE: "amount is above the asset's maximum",
    Refusal.OVERFLOW: "amount is larger than the largest possible transfer",
    Refusal.HALTED: "transfers are halted until an operator resumes them",
    Refusal.OVERLOADED: "too many requests are waiting; nothing was accepted",
    Refusal.TOO_LATE: "the request waited too long; nothing was accepted",
    Refusal.EXPIRED: "the request expired before it was processed; no money has moved",
    Refusal.KEY_REFUSED: "the request with this cid was refused before; use a new cid",
    SYSTEM_ERROR: "internal error; nothing was accepted",
    UNAVAILABLE: "a system does not answer; check the current state before you retry",
    DATABASE_UNAVAILABLE: "the database is unavailable; nothing was accepted",
    OUTCOME_UNKNOWN: "the result is unknown: repeat the request with the same cid, or look it up",
    NOT_FOUND: "not found",
    METHOD_NOT_ALLOWED: "this route does not support this method",
    PAYLOAD_TOO_LARGE: "the body is larger than this route accepts",
    TRANSFER_REFUSED: "the transfer was refused and has ended; no money has moved",
}
DEFAULT_STATUS = 422  # A system's own reason: well-formed, and refused.


def code_of(reason: str | None) -> str:
    """Return a known reason as its code. A system's or a person's own text is not a code."""
    known = reason in Reason.__members__ or reason in Refusal.__members__
    return str(reason) if known else TRANSFER_REFUSED


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
        # A retry without a cid could do the same thing twice.
        "retryable": status in TRY_AGAIN and code != OUTCOME_UNKNOWN,
        "request_id": request_id,
        **(more or {}),
    }
    all_headers = {**(headers or {}), "X-Request-Id": request_id}
    if status == HTTPStatus.UNAUTHORIZED:
        all_headers["WWW-Authenticate"] = "Bearer"
    if status in TRY_AGAIN:
        all_headers.setdefault("Retry-After", "1")
    return json_reply(body, status, all_headers, MEDIA_TYPE)
