"""The pages that explain the code name only what exists."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "tidegate"
PAGES = ("docs/walkthrough.md", "ARCHITECTURE.md")
PATH = re.compile(r"`((?:\w+/)+(?:\w+\.(?:py|sql))?|(?:\w+/)+\w+\.(?:py|sql))`")
FUNCTION = re.compile(r"`(\w+)\(\)`")
METHOD = re.compile(r"`([A-Z]\w+)\.(\w+)`")


def definitions() -> Iterator[str]:
    for path in SOURCES.rglob("*.py"):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node.name
            if isinstance(node, ast.ClassDef):
                yield from (f"{node.name}.{name}" for name in members(node))


def members(node: ast.ClassDef) -> Iterator[str]:
    for inner in node.body:
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
            yield inner.name
        elif isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
            yield inner.target.id


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_a_page_names_exists(page: str) -> None:
    named = PATH.findall((ROOT / page).read_text("utf-8"))
    assert named
    folders = (SOURCES, ROOT, SOURCES / "store")
    assert [path for path in named if not any((folder / path).exists() for folder in folders)] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_function_that_a_page_names_exists(page: str) -> None:
    text, known = (ROOT / page).read_text("utf-8"), set(definitions())
    named = FUNCTION.findall(text) + [".".join(pair) for pair in METHOD.findall(text)]
    assert [name for name in named if name not in known] == []


def test_the_diagram_of_tables_names_tables_that_exist(database: str) -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    diagram = page.partition("erDiagram\n")[2].partition("```")[0]
    named = set(re.findall(r"^ +(\w+) \S+ (\w+) :", diagram, re.MULTILINE))
    tables = {table for pair in named for table in pair}
    assert len(tables) >= 8
    with psycopg.connect(database) as connection:
        found = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname !~ '^(pg_|information_schema)'"
        ).fetchall()
    assert tables <= {name for (name,) in found}
