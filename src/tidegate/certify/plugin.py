"""One test for each check: `pytest --tidegate-certify module:factory`, or a line in a test."""

import asyncio
import sys
from collections.abc import Callable, Iterator

import pytest
from ulid import ULID

from tidegate.certify.checks import CHECKS, Check
from tidegate.certify.report import failure
from tidegate.certify.run import CheckOutcome, attempt
from tidegate.certify.system_under_test import Factory, FactoryNotFound, load


def certificate(factory: Factory) -> Callable[[Check], None]:
    """`test_my_system = certificate(factory)` in a test module is one test for each check."""

    @pytest.mark.parametrize("check", CHECKS, ids=[check.name for check in CHECKS])
    def test(check: Check) -> None:
        holds(check, factory)

    return test


def holds(check: Check, factory: Factory) -> None:
    """Pass, fail with what to do, or skip with what the bench lacks."""
    finding = asyncio.run(attempt(check, factory, ULID().to_uuid()))
    if finding.verdict is CheckOutcome.FAILED:
        pytest.fail(failure(finding), pytrace=False)
    if finding.verdict is CheckOutcome.NOT_TRIED:
        pytest.skip(finding.why)


class CheckItem(pytest.Item):
    """A check as a test of its own, which belongs to no file."""

    check: Check
    factory: Factory

    def runtest(self) -> None:
        holds(self.check, self.factory)

    def reportinfo(self) -> tuple[str, None, str]:
        return "certificate", None, self.nodeid


class Certificate(pytest.Collector):
    factory: Factory

    def collect(self) -> Iterator[pytest.Item]:
        for check in CHECKS:
            nodeid = f"{self.name}::{check.name}"
            item = CheckItem.from_parent(self, name=check.name, nodeid=nodeid)
            item.check, item.factory = check, self.factory
            yield item


class Plugin:
    """Registered only in runs that ask for it."""

    def __init__(self, names: list[str]) -> None:
        self._names = names

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(
        self, session: pytest.Session, items: list[pytest.Item]
    ) -> None:
        # As `python -m pytest` does: the factory is in the directory we are in.
        sys.path.insert(0, str(session.config.invocation_params.dir))
        for name in self._names:
            certificate = Certificate.from_parent(session, name=name, nodeid=name)
            try:
                certificate.factory = load(name)
            except FactoryNotFound as fault:
                raise pytest.UsageError(f"--tidegate-certify: {fault}") from fault
            items.extend(session.genitems(certificate))
