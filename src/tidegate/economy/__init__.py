"""The library of the guild economy: members pay each other, at once or through the transfer pool.

service = TransferService(pool, event_pool_enabled=True)
transfer_id = await service.transfer_currency(
    guild_id=1, initiator_id=2, target_id=3, amount=100, reason="lunch"
)
status = await service.get_transfer_status(transfer_id=transfer_id)
"""

from tidegate.economy.coordinator import TransferEventPoolCoordinator
from tidegate.economy.errors import (
    AccountDisabled,
    AccountFrozen,
    AccountNotFound,
    DailyLimitExceeded,
    DifferentTransfer,
    InsufficientBalance,
    InvalidTransfer,
    TransferError,
    TransferNotFound,
    TransferThrottled,
    TransferUnavailable,
)
from tidegate.economy.gateway import PendingTransfer, PendingTransferGateway
from tidegate.economy.listener import TelemetryListener
from tidegate.economy.service import TransferResult, TransferService

__all__ = [
    "AccountDisabled",
    "AccountFrozen",
    "AccountNotFound",
    "DailyLimitExceeded",
    "DifferentTransfer",
    "InsufficientBalance",
    "InvalidTransfer",
    "PendingTransfer",
    "PendingTransferGateway",
    "TelemetryListener",
    "TransferError",
    "TransferEventPoolCoordinator",
    "TransferNotFound",
    "TransferResult",
    "TransferService",
    "TransferThrottled",
    "TransferUnavailable",
]
