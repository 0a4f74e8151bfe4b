"""The glossary has every word of the code once."""

import ast
from collections import Counter

from tests.glossary import PAGE, ROOT, modules, terms, written


def test_no_term_is_explained_twice() -> None:
    counted = Counter(term.lower() for term in terms(PAGE.read_text("utf-8")))
    assert [term for term, number in counted.items() if number > 1] == []


def test_the_word_of_every_module_is_a_term() -> None:
    known = set(terms(PAGE.read_text("utf-8")))
    assert [where for word, where, _ in modules() if word not in known] == []


def test_the_list_of_modules_is_as_the_code_is() -> None:
    page = PAGE.read_text("utf-8")
    assert page == written(page), "run `python -m tests.glossary`"


def test_no_two_public_classes_have_the_same_name() -> None:
    places: dict[str, list[str]] = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(path.relative_to(ROOT).as_posix())
    each_flow_has_one = places.pop("State")
    assert all("/flows/" in path for path in each_flow_has_one)
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}
