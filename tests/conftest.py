"""Fixtures of the whole suite: one PostgreSQL per run, and a new database per test."""

import os
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
import uvloop

from tests.arrays import send_arrays_as_text
from tests.cluster import (
    Cluster,
    cluster_url,
    create_database,
    leave_database,
    start_cluster,
    stop_cluster,
)
from tests.together import Together
from tests.token_clients import COLLECTING
from tidegate.flows import FLOWS
from tidegate.store.migrate import migrate

SCHEMA = "store_one"
_cluster = pytest.StashKey[Cluster]()
_numbers = count()


def pytest_configure(config: pytest.Config) -> None:
    uvloop.install()  # The loop that the API and the workers run on.
    send_arrays_as_text()
    if not hasattr(config, "workerinput"):
        config.stash[_cluster] = start_cluster()


def pytest_unconfigure(config: pytest.Config) -> None:
    if cluster := config.stash.get(_cluster, None):
        stop_cluster(cluster)


def pytest_collection() -> None:
    os.environ[COLLECTING] = "yes"


def pytest_collection_finish() -> None:
    os.environ.pop(COLLECTING, None)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Together | None:
    return Together(config, log) if config.getvalue("dist") == "loadgroup" else None


# Slow directories: `make test` runs them, `make check` does not.
SLOW = ("acceptance", "crash", "postgres", "store", "service")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    slow = [config.rootpath / "tests" / name for name in SLOW]
    for item in items:
        if any(item.path.is_relative_to(directory) for directory in slow):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def template() -> Iterator[str]:
    """A migrated database of this pytest worker, from which each test's database is cloned."""
    name = f"template_{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}"
    migrate(create_database(cluster_url(), name), SCHEMA, FLOWS.values(), economy=True)
    yield name
    leave_database(cluster_url(), name)


@pytest.fixture
def database(template: str) -> Iterator[str]:
    """The address of a migrated, empty database that no other test sees."""
    name = f"{template}_{next(_numbers)}"
    yield create_database(cluster_url(), name, template)
    leave_database(cluster_url(), name)
