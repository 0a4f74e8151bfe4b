"""Databases in which nothing is written, or nothing was ever migrated."""

import os
from collections.abc import Iterator
from itertools import count

import pytest

from tests.cluster import cluster_url, create_database, leave_database

_numbers = count()


@pytest.fixture(scope="module")
def untouched(template: str) -> Iterator[str]:
    """A migrated database for the tests of a module that leave nothing behind in it."""
    name = f"{template}_untouched_{next(_numbers)}"
    yield create_database(cluster_url(), name, template)
    leave_database(cluster_url(), name)


@pytest.fixture
def bare() -> Iterator[str]:
    """The address of an empty database in which nothing was migrated yet."""
    name = f"bare_{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}_{next(_numbers)}"
    yield create_database(cluster_url(), name)
    leave_database(cluster_url(), name)
