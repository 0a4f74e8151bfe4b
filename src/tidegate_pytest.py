"""The way into pytest. It costs a run nothing that does not ask for it, not even an import."""

import pytest

OPTION = "--tidegate-certify"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("tidegate").addoption(
        OPTION,
        action="append",
        default=[],
        metavar="MODULE:FACTORY",
        help="try the system that this factory puts on a bench: one test for each check",
    )


def pytest_configure(config: pytest.Config) -> None:
    if names := config.getoption(OPTION):
        from tidegate.certify.plugin import Plugin  # noqa: PLC0415

        config.pluginmanager.register(Plugin(names), "tidegate certificate")
