"""Why a transfer was not made. Nothing has moved when one of these is raised, but for the last.

TransferError
├── InvalidTransfer        it could never be made: an amount of nothing, to oneself
├── DifferentTransfer      its cid stands for another one
├── InsufficientBalance
├── TransferThrottled      the initiator has to cool down
├── DailyLimitExceeded
├── AccountNotFound
├── AccountFrozen
├── AccountDisabled
├── TransferNotFound       the pool never had it
└── TransferUnavailable    it cannot be said now what became of it: ask again with the same cid
"""

from collections.abc import Mapping


class TransferError(Exception):
    """A transfer that was not made; `transfer_id` if there is a record of the attempt."""

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


# By the reason or the refusal that the engine gives.
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
