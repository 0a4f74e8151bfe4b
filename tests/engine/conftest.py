"""Each promise of the engine is put to it on PostgreSQL and on the twin."""

import pytest

from tests.engine.rig import Play, player


@pytest.fixture(params=["postgres", "twin"])
def play(request: pytest.FixtureRequest, database: str) -> Play:
    return player(request.param, database)


@pytest.fixture
def play_postgres(database: str) -> Play:
    return player("postgres", database)
