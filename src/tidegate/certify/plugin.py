"""The pytest plugin: one test for each check, by an option or by one line in a test module."""

import asyncio
import sys
from collections.abc import Callable, Iterator

import pytest
from ulid import ULID

from tidegate.certify.checks import CHECKS, Check
from tidegate.certify.report import failure
from tidegate.certify.run import CheckOutcome, run_check
from tidegate.certify.system_under_test import Factory, FactoryNotFound, load


def certificate(factory: Factory) -> Callable[[Check], None]:
    """`test_my_system = certificate(factory)` in a test module makes one test for each check."""

    @pytest.mark.parametrize("check", CHECKS, ids=[check.name for check in CHECKS])
    def test(check: Check) -> None:
        run_as_test(check, factory)

    return test


def run_as_test(check: Check, factory: Factory) -> None:
    """Run a check: pass, fail with an explanation, or skip if the bench lacks something."""
    result = asyncio.run(run_check(check, factory, ULID().to_uuid()))
    if result.verdict is CheckOutcome.FAILED:
        pytest.fail(failure(result), pytrace=False)
    if result.verdict is CheckOutcome.NOT_TRIED:
        pytest.skip(result.reason)


class CheckItem(pytest.Item):
    """The test of one check. It belongs to no file."""

    check: Check
    factory: Factory

    def runtest(self) -> None:
        run_as_test(self.check, self.factory)

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
    """The pytest plugin. It is registered only if the option is used."""

    def __init__(self, names: list[str]) -> None:
        self._names = names

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(
        self, session: pytest.Session, items: list[pytest.Item]
    ) -> None:
        # As `python -m pytest` does: the factory is in the current directory.
        sys.path.insert(0, str(session.config.invocation_params.dir))
        for name in self._names:
            certificate = Certificate.from_parent(session, name=name, nodeid=name)
            try:
                certificate.factory = load(name)
            except FactoryNotFound as fault:
                raise pytest.UsageError(f"--tidegate-certify: {fault}") from fault
            items.extend(session.genitems(certificate))
