"""Tests that share what takes long to make are given to one worker."""

from pathlib import Path
from typing import Any

from tests.together import TOGETHER, Together

HERE = Path(__file__).parent


def piece(test: str) -> str:
    nobody: Any = None
    return Together._split_scope(nobody, test)


def test_the_files_of_a_group_are_one_piece_of_work() -> None:
    for path, group in TOGETHER.items():
        assert (HERE.parent / path).is_file()
        assert piece(f"{path}::test_one") == piece(f"{path}::test_other[::]") == group


def test_each_of_the_others_is_a_piece_of_its_own() -> None:
    first, second = "tests/test_tidy.py::test_one", "tests/test_tidy.py::test_two"
    assert (piece(first), piece(second)) == (first, second)


def test_nobody_uses_the_mark_that_has_no_effect() -> None:
    mark = "xdist" + "_group"
    assert [path for path in HERE.rglob("*.py") if mark in path.read_text()] == []
