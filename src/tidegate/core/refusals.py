"""Why a request is refused: one name per reason. A refused request has moved no money."""

from enum import StrEnum


class Refusal(StrEnum):
    UNAUTHORIZED = "UNAUTHORIZED"
    FORBIDDEN = "FORBIDDEN"
    IDEMPOTENCY_MISMATCH = "IDEMPOTENCY_MISMATCH"  # The cid was used for another request.
    INVALID_REQUEST = "INVALID_REQUEST"
    INVALID_PARTIES = "INVALID_PARTIES"  # The parties do not match the roles of the flow.
    SAME_ACCOUNT = "SAME_ACCOUNT"
    INVALID_ACCOUNT_TYPE = "INVALID_ACCOUNT_TYPE"
    UNSUPPORTED_ACCOUNT_TYPE = "UNSUPPORTED_ACCOUNT_TYPE"
    INVALID_ASSET = "INVALID_ASSET"
    ASSET_SUSPENDED = "ASSET_SUSPENDED"
    TRANSFER_NOT_ALLOWED = "TRANSFER_NOT_ALLOWED"
    INVALID_AMOUNT = "INVALID_AMOUNT"
    INVALID_FEE = "INVALID_FEE"  # Negative, not below the amount, or the flow has no fee.
    PRECISION_OVERFLOW = "PRECISION_OVERFLOW"
    AMOUNT_TOO_SMALL = "AMOUNT_TOO_SMALL"
    AMOUNT_TOO_LARGE = "AMOUNT_TOO_LARGE"
    OVERFLOW = "OVERFLOW"
    RATE_LIMIT_EXCEEDED = "RATE_LIMIT_EXCEEDED"
    DAILY_LIMIT_EXCEEDED = "DAILY_LIMIT_EXCEEDED"
    DAILY_AMOUNT_EXCEEDED = "DAILY_AMOUNT_EXCEEDED"
    HALTED = "HALTED"
    TOO_LATE = "TOO_LATE"  # It could not be written in time, so it was dropped.
    EXPIRED = "EXPIRED"  # Its expiry passed while it waited in the inbox.
    OVERLOADED = "OVERLOADED"  # The request queue is full: nothing was accepted.
    KEY_REFUSED = "KEY_REFUSED"  # Refused before under this key, for a temporary reason.


# The caller may ask again, but needs a new key if the refusal was stored under the old one.
TEMPORARY = frozenset(
    {
        Refusal.RATE_LIMIT_EXCEEDED,
        Refusal.DAILY_LIMIT_EXCEEDED,
        Refusal.DAILY_AMOUNT_EXCEEDED,
        Refusal.HALTED,
        Refusal.TOO_LATE,
        Refusal.OVERLOADED,
    }
)


def stored_refusal(name: str) -> Refusal:
    """The reply for a key whose request was refused before. The request is not tried again.

    A name that this version does not know was stored by a newer one, and is a refusal, too.
    """
    refusal = Refusal(name) if name in Refusal.__members__ else Refusal.INVALID_REQUEST
    return Refusal.KEY_REFUSED if refusal in TEMPORARY else refusal


class Reason(StrEnum):
    """Why a system refused an operation. It is stored under the operation's key."""

    INVALID_OWNER = "INVALID_OWNER"
    INVALID_ASSET = "INVALID_ASSET"
    INVALID_AMOUNT = "INVALID_AMOUNT"
    SOURCE_ACCOUNT_NOT_FOUND = "SOURCE_ACCOUNT_NOT_FOUND"
    TARGET_ACCOUNT_NOT_FOUND = "TARGET_ACCOUNT_NOT_FOUND"
    ACCOUNT_FROZEN = "ACCOUNT_FROZEN"
    ACCOUNT_DISABLED = "ACCOUNT_DISABLED"
    INSUFFICIENT_BALANCE = "INSUFFICIENT_BALANCE"
    BALANCE_OVERFLOW = "BALANCE_OVERFLOW"
    UNDONE = "UNDONE"  # Its undo came first and stored a tombstone.


class Doubt(StrEnum):
    """Why a system answered neither Done nor Rejected. Nothing is stored under the key."""

    BUSY = "BUSY"  # Not executed: the queue was full.
    KEY_REUSED = "KEY_REUSED"  # The key was used with another verb, account or amount.
    RETIRED = "RETIRED"  # The key is below the floor: the system may have forgotten it.
    UNDO_UNFOUNDED = "UNDO_UNFOUNDED"  # The undo names an operation that was never done there.
    ALREADY_CLOSED = "ALREADY_CLOSED"  # The hold was ended before: captured, or released.
