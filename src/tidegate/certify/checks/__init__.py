"""The checks: each is a promise that a system with money must keep, and a scene that tests it."""

from tidegate.certify.checks.accounts import ACCOUNTS
from tidegate.certify.checks.batches import BATCHES
from tidegate.certify.checks.check import Check
from tidegate.certify.checks.faults import FAULTS
from tidegate.certify.checks.keys import KEYS
from tidegate.certify.checks.undos import UNDOS

CHECKS: tuple[Check, ...] = (*KEYS, *UNDOS, *BATCHES, *FAULTS, *ACCOUNTS)

__all__ = ["CHECKS", "Check"]
