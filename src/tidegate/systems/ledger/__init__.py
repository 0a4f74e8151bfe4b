"""The ledger: accounts in our own database, which answer inside our own transactions."""

from tidegate.systems.ledger.judge import FUNDING, OUTSIDE, SUSPENSE, LedgerStatus
from tidegate.systems.ledger.memory import MemoryLedger
from tidegate.systems.ledger.postgres import Ledger

__all__ = ["FUNDING", "OUTSIDE", "SUSPENSE", "Ledger", "LedgerStatus", "MemoryLedger"]
