"""A private directory for the clusters of a test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate.postgres import private_directory


@pytest.fixture
def directory() -> Iterator[Path]:
    """Create a directory that only our user may enter, as `mktemp -d` does."""
    with private_directory() as path:
        assert path.stat().st_mode & 0o777 == 0o700
        yield path
