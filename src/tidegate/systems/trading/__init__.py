"""The client of the trading core, a system outside."""

from tidegate.systems.trading.client import (
    Balance,
    Caller,
    Recollection,
    Refused,
    Totals,
    Trading,
    newest,
    recall,
)
from tidegate.systems.trading.connection import Connect, Declined, Link, dial, worker_name

__all__ = [
    "Balance",
    "Caller",
    "Connect",
    "Declined",
    "Link",
    "Recollection",
    "Refused",
    "Totals",
    "Trading",
    "dial",
    "newest",
    "recall",
    "worker_name",
]
