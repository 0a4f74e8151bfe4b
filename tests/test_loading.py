"""Imports: a command loads only what it needs, and every public name is found."""

import subprocess
import sys

import pytest

import tidegate
from tidegate.cli import COMMANDS, needed_commands

# The modules that load slowest: PostgreSQL's client, the HTTP server, and the log.
HEAVY = {"psycopg", "uvicorn", "structlog"}
LIGHT_COMMANDS = {
    name for name, module in COMMANDS.items() if module in ("core", "operator", "user", "pool")
}


def loaded_by(code: str) -> set[str]:
    command = [sys.executable, "-c", f"import sys\n{code}\nprint(*sys.modules)"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(result.stdout.split())


def test_commands_that_only_call_a_service_do_not_load_its_modules() -> None:
    loaded = loaded_by(f"from tidegate.cli import cli; cli({sorted(LIGHT_COMMANDS)})")
    assert {"tidegate.commands.operator", "tidegate.commands.core"} <= loaded
    assert not HEAVY & loaded


def test_the_trading_core_does_not_load_the_database_client() -> None:
    loaded = loaded_by("import tidegate.trading_core.server")
    assert "tidegate.trading_core.judge" in loaded
    assert not HEAVY & loaded


def test_a_command_line_loads_its_command_and_an_unknown_one_loads_all() -> None:
    assert list(needed_commands(["show", "transfer"])) == ["show"]
    assert list(needed_commands(["--version"])) == []
    for arguments in ([], ["--help"], ["shwo"], ["--data", "show"]):
        assert list(needed_commands(arguments)) == list(COMMANDS)


@pytest.mark.parametrize("name", tidegate.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    own = getattr(getattr(tidegate, name), "__name__", name)  # A union has no name.
    assert own == ("Server" if name == "EmbeddedPostgres" else name)


def test_an_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        tidegate.nothing  # type: ignore[attr-defined]  # noqa: B018
