"""Test files that run in one pytest worker, one after the other, to share expensive fixtures.

Grouped by file, and not by the marks of pytest-xdist, which do not work with pytest 9.
"""

from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

TOGETHER = {
    "tests/test_cli.py": "the house of the command line",
    "tests/test_client.py": "the house of the client",
    "tests/test_api_processes.py": "the processes of one port",
    "tests/test_supervisor.py": "many houses",
    "tests/crash/test_house.py": "many houses",
    "tests/model/test_model.py": "the compiled model",
    "tests/store/test_plans.py": "large tables",
    "tests/store/test_archive_plans.py": "large tables",
}


class Together(LoadScopeScheduling):  # type: ignore[misc]
    """The tests of a group are one unit of work. Each other test is a unit of its own."""

    def _split_scope(self, nodeid: str) -> str:
        return TOGETHER.get(nodeid.split("::", maxsplit=1)[0], nodeid)
