"""The entry point of the pytest plugin. It imports Tidegate only if its option is used."""

import pytest

OPTION = "--tidegate-certify"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("tidegate").addoption(
        OPTION,
        action="append",
        default=[],
        metavar="MODULE:FACTORY",
        help="certify the system of this factory's bench: one test for each check",
    )


def pytest_configure(config: pytest.Config) -> None:
    if names := config.getoption(OPTION):
        from tidegate.certify.plugin import Plugin  # noqa: PLC0415

        config.pluginmanager.register(Plugin(names), "tidegate certificate")
