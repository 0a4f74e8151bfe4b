"""Every alert has a code that people can look up."""

import re
from pathlib import Path

from tidegate.engine.alerts import AlertCode

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"


def test_the_page_for_operators_lists_every_alert_code_and_no_other() -> None:
    page = OPERATIONS.read_text(encoding="utf-8")
    table = page[page.index("| code | level and cause | do |") :].partition("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.+) \| (.+) \|$", table, re.MULTILINE)
    assert sorted(code for code, _, _ in rows) == sorted(str(code) for code in AlertCode)
