"""A certificate for any system with money: what it promises, tried on it."""

from tidegate.certify.bench import Bench, Factory, InTransaction, NoFactory, load
from tidegate.certify.checks import CHECKS, Check
from tidegate.certify.page import as_json, failure, holds, print_page
from tidegate.certify.run import Finding, Verdict, attempt

__all__ = [
    "CHECKS",
    "Bench",
    "Check",
    "Factory",
    "Finding",
    "InTransaction",
    "NoFactory",
    "Verdict",
    "as_json",
    "attempt",
    "failure",
    "holds",
    "load",
    "print_page",
]
