"""The program as it is typed: commands, exit codes, and errors in one line."""

import subprocess
import sys
from pathlib import Path

from tests.conftest import SCHEMA

PROGRAM = Path(sys.executable).with_name("tidegate")


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, *words], check=False, capture_output=True, text=True, timeout=60
    )


def test_migrate_says_what_it_did_and_then_that_nothing_is_left(database: str) -> None:
    first = run("migrate", "--database", database, "--schema", "fresh")
    assert first.returncode == 0, first.stderr
    assert "fresh: 0001_begin" in first.stdout
    again = run("migrate", "--database", database, "--schema", "fresh")
    assert again.stdout == "up to date\n"
    assert run("migrate", "--database", database, "--schema", SCHEMA).stdout == "up to date\n"


def test_a_database_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    said = run("migrate", "--database", f"host={tmp_path} dbname=none")
    assert said.returncode == 1
    assert said.stderr.startswith("cannot migrate: ")
    assert "Traceback" not in said.stderr


def test_flows_prints_every_diagram() -> None:
    said = run("flows").stdout
    for name in ("internal_transfer", "deposit", "external_withdrawal"):
        assert f"# {name}\nstateDiagram-v2" in said


def test_core_runs_and_stops_in_order(tmp_path: Path) -> None:
    words = ["core", "--data", str(tmp_path / "core"), "--listen", f"unix:{tmp_path}/s"]
    with subprocess.Popen([PROGRAM, *words], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline().startswith("trading core ready")
        child.terminate()
        assert child.wait(20) == 0


def test_core_says_in_one_line_why_it_cannot_listen(tmp_path: Path) -> None:
    said = run("core", "--data", str(tmp_path / "core"), "--listen", "carrier pigeon")
    assert said.returncode == 1
    assert said.stderr.splitlines()[-1].startswith("trading core: listen on unix:PATH or tcp:")
