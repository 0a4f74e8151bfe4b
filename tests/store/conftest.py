"""Fixtures: a migrated database that a module shares, and a database without migrations."""

import os
from collections.abc import Iterator
from itertools import count

import pytest

from tests.cluster import cluster_url, create_database, leave_database

_numbers = count()


@pytest.fixture(scope="module")
def migrated(template: str) -> Iterator[str]:
    """A migrated database, shared by the tests of a module that leave no changes in it."""
    name = f"{template}_untouched_{next(_numbers)}"
    yield create_database(cluster_url(), name, template)
    leave_database(cluster_url(), name)


@pytest.fixture
def unmigrated() -> Iterator[str]:
    """The address of an empty database on which no migration was run."""
    name = f"bare_{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}_{next(_numbers)}"
    yield create_database(cluster_url(), name)
    leave_database(cluster_url(), name)
