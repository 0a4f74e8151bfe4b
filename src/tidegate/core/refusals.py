"""Why a request is not accepted: one name per cause. Nothing has moved when one is given."""

from enum import StrEnum


class Refusal(StrEnum):
    UNAUTHORIZED = "UNAUTHORIZED"
    FORBIDDEN = "FORBIDDEN"
    IDEMPOTENCY_MISMATCH = "IDEMPOTENCY_MISMATCH"  # The same cid with another body.
    INVALID_REQUEST = "INVALID_REQUEST"
    INVALID_PARTIES = "INVALID_PARTIES"  # The parties are not exactly the roles of the flow.
    SAME_ACCOUNT = "SAME_ACCOUNT"
    INVALID_ACCOUNT_TYPE = "INVALID_ACCOUNT_TYPE"
    UNSUPPORTED_ACCOUNT_TYPE = "UNSUPPORTED_ACCOUNT_TYPE"
    INVALID_ASSET = "INVALID_ASSET"
    ASSET_SUSPENDED = "ASSET_SUSPENDED"
    TRANSFER_NOT_ALLOWED = "TRANSFER_NOT_ALLOWED"
    INVALID_AMOUNT = "INVALID_AMOUNT"
    INVALID_FEE = "INVALID_FEE"  # Not from 0 to below the amount, or of a flow without a fee.
    PRECISION_OVERFLOW = "PRECISION_OVERFLOW"
    AMOUNT_TOO_SMALL = "AMOUNT_TOO_SMALL"
    AMOUNT_TOO_LARGE = "AMOUNT_TOO_LARGE"
    OVERFLOW = "OVERFLOW"
    RATE_LIMIT_EXCEEDED = "RATE_LIMIT_EXCEEDED"
    DAILY_LIMIT_EXCEEDED = "DAILY_LIMIT_EXCEEDED"
    DAILY_AMOUNT_EXCEEDED = "DAILY_AMOUNT_EXCEEDED"
    HALTED = "HALTED"
    TOO_LATE = "TOO_LATE"  # It waited for the database so long that it may no longer be born.
    EXPIRED = "EXPIRED"  # It waited in the inbox for longer than it may live.
    OVERLOADED = "OVERLOADED"  # The queue of requests is full: nothing was accepted.
    KEY_REFUSED = "KEY_REFUSED"  # The key's request was refused, for a cause that may have passed.


# Causes that pass: whoever hears of one may ask again, but not under a key that keeps it.
PASSING = frozenset(
    {
        Refusal.RATE_LIMIT_EXCEEDED,
        Refusal.DAILY_LIMIT_EXCEEDED,
        Refusal.DAILY_AMOUNT_EXCEEDED,
        Refusal.HALTED,
        Refusal.TOO_LATE,
        Refusal.OVERLOADED,
    }
)


def kept_refusal(name: str) -> Refusal:
    """What a key answers whose request was refused. The same request again changes nothing.

    One that a newer version gave is a refusal all the same.
    """
    refusal = Refusal(name) if name in Refusal.__members__ else Refusal.INVALID_REQUEST
    return Refusal.KEY_REFUSED if refusal in PASSING else refusal


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
    UNDONE = "UNDONE"  # Its undo came first and left a tombstone.


class Doubt(StrEnum):
    """Why a system would not say yes or no. Nothing is stored under the key."""

    BUSY = "BUSY"  # Definitely not executed: the queue was full.
    KEY_REUSED = "KEY_REUSED"  # The same key with another verb, account or amount.
    RETIRED = "RETIRED"  # The key is below the floor of what the system still remembers.
    UNDO_UNFOUNDED = "UNDO_UNFOUNDED"  # What we hold as Done was never done there.
    ALREADY_CLOSED = "ALREADY_CLOSED"  # The hold was captured and is now to be released, or so.
