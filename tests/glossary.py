"""The glossary's list of modules: `python -m tests.glossary` writes it anew.

The words of modules that are terms of their own stand above, with their meaning.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "glossary.md"
BEGIN = "<!-- modules: made by `python -m tests.glossary` from the first line of each module -->\n"
END = "<!-- end of modules -->\n"
ROW = re.compile(r"^\| (?!term\b|---)(.+?) \| (.+) \|$", re.MULTILINE)


def terms(page: str) -> list[str]:
    """Every term of the page, each as often as it is there."""
    return [term for first, _ in ROW.findall(page) for term in first.split(", ")]


def modules() -> Iterator[tuple[str, str, str]]:
    """The word of each module, where it is, and its first sentence."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        if path.stem.startswith("__"):
            continue
        docstring = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        where = path.relative_to(ROOT / "src").with_suffix("").as_posix()
        word = path.stem.replace("_", " ")
        yield word, where.removeprefix("tidegate/"), docstring.partition("\n")[0]


def module_rows(page: str) -> str:
    known = set(terms(page.partition(BEGIN)[0]))
    rows: dict[str, list[str]] = {}
    for word, where, sentence in modules():
        if word not in known:
            rows.setdefault(word, []).append(f"`{where}`: {sentence}")
    head = "| term | meaning |\n|---|---|\n"
    return head + "".join(
        f"| {word} | {' '.join(texts)} |\n" for word, texts in sorted(rows.items())
    )


def written(page: str) -> str:
    """The page with the rows of its modules as they are now."""
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + module_rows(page) + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
