"""The fixture that runs a scenario against the service on a real socket."""

from pathlib import Path

import pytest

from tests.service.rig import Run, runner_for


@pytest.fixture
def run(database: str, tmp_path: Path) -> Run:
    return runner_for(database, tmp_path)
