"""A guild of its own for every test."""

import pytest

from tests.economy.rig import Play, player


@pytest.fixture
def play(database: str) -> Play:
    return player(database)
