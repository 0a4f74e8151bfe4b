"""Rooms for clusters, removed with what is in them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate.postgres import private_directory


@pytest.fixture
def room() -> Iterator[Path]:
    """A directory that only we may enter, as `mktemp -d` makes it."""
    with private_directory() as path:
        assert path.stat().st_mode & 0o777 == 0o700
        yield path
