"""Which tests run in one worker, one after the other, because they share what takes long to make.

By file, and not by the marks of pytest-xdist: it writes them where pytest 9 no longer reads.
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
    """Tests of one group are one piece of work; each of the others is a piece of its own."""

    def _split_scope(self, nodeid: str) -> str:
        return TOGETHER.get(nodeid.split("::", maxsplit=1)[0], nodeid)
