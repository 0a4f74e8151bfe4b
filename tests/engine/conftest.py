"""Fixtures that run a test of the engine on PostgreSQL and on the in-memory store."""

from pathlib import Path

import pytest

from tests.engine import audited
from tests.engine.rig import Play, player


@pytest.fixture(params=["postgres", "twin"])
def play(request: pytest.FixtureRequest, database: str) -> Play:
    return player(request.param, database)


@pytest.fixture
def play_postgres(database: str) -> Play:
    return player("postgres", database)


@pytest.fixture
def play_audited(database: str, tmp_path: Path) -> audited.Play:
    return audited.player(database, tmp_path)
