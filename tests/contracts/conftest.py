"""Each promise of a store is put to PostgreSQL and to the twin."""

import pytest

from tests.contracts.stores import Play, player, postgres, twin


@pytest.fixture(params=[postgres, twin], ids=["postgres", "twin"])
def play(request: pytest.FixtureRequest, database: str) -> Play:
    return player(request.param, database)
