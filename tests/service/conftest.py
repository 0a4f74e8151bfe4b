"""Scenes are played against the service on a real socket."""

from pathlib import Path

import pytest

from tests.service.rig import Play, player


@pytest.fixture
def play(database: str, tmp_path: Path) -> Play:
    return player(database, tmp_path)
