"""Statements by name: what the server is given is the statement, without the prose around it."""

from tidegate.core.sql import load, parse

TWO = """-- What stands before the first header belongs to no statement.

-- first: says why it is safe.
-- And goes on saying it.
SELECT a  -- the column
  FROM b;

-- second_one: another.
SELECT 1;
"""


def test_each_header_names_the_statement_below_it() -> None:
    assert parse(TWO) == {"first": "SELECT a\n  FROM b", "second_one": "SELECT 1"}


def test_a_comment_without_a_name_begins_no_statement() -> None:
    assert parse("-- No name here.\nSELECT 1;\n") == {}


def test_statements_are_read_from_the_package_that_owns_them() -> None:
    statements = load("tidegate.store", "queries.sql")
    assert statements["claim"].startswith("WITH due AS MATERIALIZED")
    assert not any("--" in text or text.endswith(";") for text in statements.values())
