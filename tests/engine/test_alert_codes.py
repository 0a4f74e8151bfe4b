"""Every alert code and every log event is a stable code that docs/operations.md explains."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tidegate.app import log_alert
from tidegate.core.answers import Alarm
from tidegate.engine.alerts import Alert, AlertCode

ROOT = Path(__file__).parents[2]
OPERATIONS = ROOT / "docs" / "operations.md"
SNAKE_CASE = re.compile(r"[a-z]+(_[a-z]+)*")
LOGGER = re.compile(r"(structlog\.get_logger|logging\.getLogger)\b")
LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log", "msg"}
ALERT_LOG = "log_alert"  # The one function whose event is not a literal: it is the alert code.


def listed(heading: str) -> dict[str, list[str]]:
    """The rows of the table under a header line: by code, the other columns."""
    page = OPERATIONS.read_text(encoding="utf-8")
    table = page[page.index(heading) :].partition("\n\n")[0]
    rows = [re.split(r" \| ", row.strip("| ")) for row in table.splitlines()[2:]]
    codes = [row[0].strip("`") for row in rows]
    assert len(codes) == len(set(codes)), "a code is listed twice"
    return {code: row[1:] for code, row in zip(codes, rows, strict=True)}


def loggers(tree: ast.Module) -> set[str]:
    """The names that hold a logger of structlog, or of the standard library, in a module."""
    return {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and LOGGER.match(ast.unparse(node.value))
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def log_events(source: str) -> Iterator[str]:
    """The events that a module logs. Fails on an event that is not a literal."""
    tree = ast.parse(source)
    names = loggers(tree)
    assert names or "get_logger" not in source, "a logger that this test does not find"
    alert_log = next(
        (n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == ALERT_LOG), None
    )
    skipped = set() if alert_log is None else set(ast.walk(alert_log))
    called = {
        id(node.func): node.args[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and node.args
    }
    for node in ast.walk(tree):
        is_logger = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        if node in skipped or not is_logger:
            continue
        assert isinstance(node, ast.Attribute)
        assert isinstance(node.value, ast.Name)
        if node.value.id in names and node.attr in LEVELS:
            event = called.get(id(node))
            assert isinstance(event, ast.Constant), f"line {node.lineno}: {ast.unparse(node)}"
            yield str(event.value)


def test_the_operations_page_lists_every_alert_code_and_no_other() -> None:
    rows = listed("| code | level and cause | do |")
    assert sorted(rows) == sorted(str(code) for code in AlertCode)
    assert all(len(columns) == 2 and all(columns) for columns in rows.values())


def test_the_operations_page_lists_every_log_event_and_no_other() -> None:
    logged = {
        event
        for path in (ROOT / "src").rglob("*.py")
        for event in log_events(path.read_text(encoding="utf-8"))
    }
    rows = listed("| event | level and meaning | do |")
    assert sorted(rows) == sorted(logged)
    assert all(len(columns) == 2 and all(columns) for columns in rows.values())
    assert not logged & {str(code) for code in AlertCode}, "an event has the name of an alert"


def test_every_code_is_in_snake_case() -> None:
    codes = [*map(str, AlertCode), *listed("| event | level and meaning | do |")]
    assert [code for code in codes if not SNAKE_CASE.fullmatch(code)] == []


@pytest.mark.parametrize(
    ("alarm", "level"),
    [
        (Alarm.NONE, "info"),
        (Alarm.PAGE, "warning"),
        (Alarm.CRITICAL, "critical"),
        (Alarm.HALT, "critical"),
    ],
)
@pytest.mark.parametrize("code", AlertCode)
def test_an_alert_is_logged_with_its_code_as_event(
    code: AlertCode, alarm: Alarm, level: str
) -> None:
    with capture_logs() as lines:
        log_alert(Alert(alarm, code, "a cause"))
    assert lines == [{"event": code, "code": code, "cause": "a cause", "log_level": level}]


@pytest.mark.parametrize(
    "source",
    [
        "log = structlog.get_logger()\nlog.info(text)",
        'log = structlog.get_logger("a")\nlog.error(f"{x} failed")',
        "log = structlog.get_logger()\nwrite = log.warning",
        "self.log = structlog.get_logger()",
    ],
)
def test_an_event_that_is_not_a_literal_is_refused(source: str) -> None:
    with pytest.raises(AssertionError):
        list(log_events(source))
