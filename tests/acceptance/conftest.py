"""One running Tidegate for all tests that break nothing, and a new one for those that do."""

from collections.abc import Iterator

import pytest

from tests.acceptance.rig import Stack, stacked
from tests.cluster import cluster_url, create_database, leave_database


@pytest.fixture(scope="session")
def shared(template: str) -> Iterator[Stack]:
    """The core and two APIs on one database, for all tests. Every test has its own owner."""
    name = f"{template}_acceptance"
    with stacked(create_database(cluster_url(), name, template)) as stack:
        stack.start_core()
        stack.start_api()
        stack.start_api()
        yield stack
    leave_database(cluster_url(), name)


@pytest.fixture
def stack(database: str) -> Iterator[Stack]:
    """A new database with a core. The test starts the APIs that it needs."""
    with stacked(database) as stack:
        stack.start_core()
        yield stack
