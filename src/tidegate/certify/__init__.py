"""A certificate for any system with money: what it promises, tried on it."""

from tidegate.certify.checks import CHECKS, Check
from tidegate.certify.report import as_json, failure, holds, print_page
from tidegate.certify.run import CheckOutcome, CheckResult, attempt
from tidegate.certify.system_under_test import (
    Factory,
    FactoryNotFound,
    LocalSystemAsked,
    SystemUnderTest,
    load,
)

__all__ = [
    "CHECKS",
    "Check",
    "CheckOutcome",
    "CheckResult",
    "Factory",
    "FactoryNotFound",
    "LocalSystemAsked",
    "SystemUnderTest",
    "as_json",
    "attempt",
    "failure",
    "holds",
    "load",
    "print_page",
]
