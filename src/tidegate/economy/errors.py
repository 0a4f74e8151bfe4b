"""The errors of a transfer. No money has moved, except perhaps with TransferUnavailable.

TransferError
├── InvalidTransfer        the request is not valid: an amount of zero, or a payment to oneself
├── DifferentTransfer      the cid was used for another transfer
├── InsufficientBalance
├── TransferThrottled      the initiator is in a cooldown
├── DailyLimitExceeded
├── AccountNotFound
├── AccountFrozen
├── AccountDisabled
├── TransferNotFound       the pool has no such transfer
└── TransferUnavailable    the result is not known now: repeat the request with the same cid
"""

from collections.abc import Mapping


class TransferError(Exception):
    """A transfer that was not made. `transfer_id` is set if the request was recorded."""

    def __init__(self, message: str, transfer_id: object = None) -> None:
        super().__init__(message)
        self.transfer_id = transfer_id


class InvalidTransfer(TransferError):
    pass


class DifferentTransfer(TransferError):
    pass


class InsufficientBalance(TransferError):
    pass


class TransferThrottled(TransferError):
    pass


class DailyLimitExceeded(TransferError):
    pass


class AccountNotFound(TransferError):
    pass


class AccountFrozen(TransferError):
    pass


class AccountDisabled(TransferError):
    pass


class TransferNotFound(TransferError):
    pass


class TransferUnavailable(TransferError):
    pass


# Keys are the reasons and refusals of the engine.
ERRORS: Mapping[str, type[TransferError]] = {
    "INSUFFICIENT_BALANCE": InsufficientBalance,
    "COOLDOWN": TransferThrottled,
    "DAILY_LIMIT_EXCEEDED": DailyLimitExceeded,
    "SOURCE_ACCOUNT_NOT_FOUND": AccountNotFound,
    "TARGET_ACCOUNT_NOT_FOUND": AccountNotFound,
    "ACCOUNT_FROZEN": AccountFrozen,
    "ACCOUNT_DISABLED": AccountDisabled,
    "IDEMPOTENCY_MISMATCH": DifferentTransfer,
    "INVALID_REQUEST": InvalidTransfer,
    "INVALID_AMOUNT": InvalidTransfer,
    "SAME_ACCOUNT": InvalidTransfer,
}


def error_of(reason: str, transfer_id: object = None) -> TransferError:
    return ERRORS.get(reason, TransferUnavailable)(reason, transfer_id)
