"""What is loaded when: a command answers at once, and everything of the library is found."""

import subprocess
import sys

import pytest

import tidegate
from tidegate.cli import COMMANDS, typed_in

# What takes longest to load: PostgreSQL's client, the HTTP server, and the log.
HEAVY = {"psycopg", "uvicorn", "structlog"}
WITHOUT = {name for name, module in COMMANDS.items() if module in ("core", "desk", "money", "pool")}


def loaded_by(code: str) -> set[str]:
    command = [sys.executable, "-c", f"import sys\n{code}\nprint(*sys.modules)"]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(said.stdout.split())


def test_whoever_asks_a_service_that_runs_loads_nothing_of_one() -> None:
    loaded = loaded_by(f"from tidegate.cli import cli; cli({sorted(WITHOUT)})")
    assert {"tidegate.commands.operator", "tidegate.commands.core"} <= loaded
    assert not HEAVY & loaded


def test_the_core_loads_no_database() -> None:
    loaded = loaded_by("import tidegate.trading_core.server")
    assert "tidegate.trading_core.judge" in loaded
    assert not HEAVY & loaded


def test_a_line_loads_what_it_begins_with_and_a_mistake_everything() -> None:
    assert list(typed_in(["show", "transfer"])) == ["show"]
    assert list(typed_in(["--version"])) == []
    for words in ([], ["--help"], ["shwo"], ["--data", "show"]):
        assert list(typed_in(words)) == list(COMMANDS)


@pytest.mark.parametrize("name", tidegate.__all__)
def test_the_library_has_what_it_says(name: str) -> None:
    own = getattr(getattr(tidegate, name), "__name__", name)  # A union has none.
    assert own == ("Server" if name == "EmbeddedPostgres" else name)


def test_and_nothing_else() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        tidegate.nothing  # type: ignore[attr-defined]  # noqa: B018
