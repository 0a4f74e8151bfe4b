"""A guild's rules for its members: the allowance to pay, and the checks of a pool transfer."""

from tidegate.systems.guild.judge import ALLOWANCE, CHECKS, POINT, book_of, member_of, payment
from tidegate.systems.guild.memory import MemoryAllowance, MemoryChecks
from tidegate.systems.guild.postgres import Allowance, Checks

__all__ = [
    "ALLOWANCE",
    "CHECKS",
    "POINT",
    "Allowance",
    "Checks",
    "MemoryAllowance",
    "MemoryChecks",
    "book_of",
    "member_of",
    "payment",
]
