"""No idea is written twice in the source: places that share six lines of one shape are counted."""

import re
from pathlib import Path

from tests.duplicates import pairs, read

SOURCES = Path(__file__).parents[1] / "src" / "tidegate"

# What stays, and why.
ACCEPTED = {
    # Two loops that go on after the database was unavailable. What they do differs in each line
    # that matters: what one turn is, what is alerted, how long to wait.
    ("engine/due_scan.py", "engine/lane.py"),
}

TWICE = """
def {name}(a, b):
    c = a + b
    for d in c.e(b):
        if d > 1:
            a.f(d)
        while a:
            b = c[d](a)
    return a or b
"""


def test_no_two_places_share_six_lines_of_one_shape() -> None:
    found = [
        (f"{one.path}:{one.first}-{one.last}", f"{other.path}:{other.first}-{other.last}")
        for one, other in pairs(read(SOURCES))
        if (one.path, other.path) not in ACCEPTED
    ]
    assert found == []


def test_what_is_accepted_is_still_there() -> None:
    assert {(one.path, other.path) for one, other in pairs(read(SOURCES))} == ACCEPTED


def test_the_same_lines_with_other_names_are_found() -> None:
    other = re.sub(r"\b[a-f]\b", lambda found: found.group() * 2, TWICE)
    [(one, two)] = pairs({"one.py": TWICE.format(name="one"), "two.py": other.format(name="two")})
    assert (one.path, two.path) == ("one.py", "two.py")
    assert one.last - one.first == two.last - two.first == 6


def test_lists_and_declarations_are_not_counted() -> None:
    listed = "def f():\n    return [\n" + "        g(1),\n" * 9 + "    ]\n"
    declared = "class A:\n" + "    a: int = 1\n" * 9
    assert list(pairs({"one.py": listed + declared, "two.py": listed + declared})) == []
