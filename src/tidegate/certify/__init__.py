"""Certification of any system with money: a test of each promise that it must keep."""

from tidegate.certify.checks import CHECKS, Check
from tidegate.certify.report import as_json, failure, nothing_failed, print_report
from tidegate.certify.run import CheckOutcome, CheckResult, run_check
from tidegate.certify.system_under_test import (
    Factory,
    FactoryNotFound,
    LocalSystemAdapter,
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
    "LocalSystemAdapter",
    "SystemUnderTest",
    "as_json",
    "failure",
    "load",
    "nothing_failed",
    "print_report",
    "run_check",
]
