"""Tests that share expensive fixtures run in one pytest worker."""

from pathlib import Path
from typing import Any

from tests.together import TOGETHER, Together

HERE = Path(__file__).parent


def unit_of(test: str) -> str:
    no_scheduler: Any = None
    return Together._split_scope(no_scheduler, test)


def test_the_tests_of_a_group_are_one_unit_of_work() -> None:
    for path, group in TOGETHER.items():
        assert (HERE.parent / path).is_file()
        assert unit_of(f"{path}::test_one") == unit_of(f"{path}::test_other[::]") == group


def test_each_other_test_is_a_unit_of_its_own() -> None:
    first, second = "tests/test_tidy.py::test_one", "tests/test_tidy.py::test_two"
    assert (unit_of(first), unit_of(second)) == (first, second)


def test_the_mark_without_effect_is_not_used() -> None:
    mark = "xdist" + "_group"
    assert [path for path in HERE.rglob("*.py") if mark in path.read_text()] == []
