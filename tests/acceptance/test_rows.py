"""Every row of the acceptance plan has a test."""

import re
from pathlib import Path

ROWS = {
    "INV": 4,
    "ATK": 13,
    "BAL": 5,
    "FSM": 6,
    "CRA": 6,
    "CON": 4,
    "IDP": 4,
    "FND": 6,
    "MON": 4,
}


def test_each_of_the_52_rows_has_a_test_of_its_name() -> None:
    wanted = {f"{kind}_{n:03}" for kind, count in ROWS.items() for n in range(1, count + 1)}
    assert len(wanted) == 52
    text = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert set(re.findall(r"^def test_([A-Z]{3}_\d{3})_\w+\(", text, re.MULTILINE)) == wanted
