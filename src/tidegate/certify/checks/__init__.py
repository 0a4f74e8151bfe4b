"""Every promise that a system with money makes, each with a scene that tries it."""

from tidegate.certify.checks.accounts import ACCOUNTS
from tidegate.certify.checks.batches import BATCHES
from tidegate.certify.checks.check import Check
from tidegate.certify.checks.faults import FAULTS
from tidegate.certify.checks.keys import KEYS
from tidegate.certify.checks.undos import UNDOS

CHECKS: tuple[Check, ...] = (*KEYS, *UNDOS, *BATCHES, *FAULTS, *ACCOUNTS)

__all__ = ["CHECKS", "Check"]
