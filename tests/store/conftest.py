"""Databases that no migration has touched."""

import os
from collections.abc import Iterator
from itertools import count

import pytest

from tests.cluster import cluster_url, create_database, drop_database

_numbers = count()


@pytest.fixture
def bare() -> Iterator[str]:
    """The address of an empty database in which nothing was migrated yet."""
    name = f"bare_{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}_{next(_numbers)}"
    yield create_database(cluster_url(), name)
    drop_database(cluster_url(), name)
