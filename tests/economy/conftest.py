"""Fixtures of the economy tests: each test has its own guild."""

from pathlib import Path

import pytest

from tests.economy.rig import Play, player


@pytest.fixture
def play(database: str) -> Play:
    return player(database)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all of these tests as slow: they wait for cooldowns, days and deadlines."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.slow)
