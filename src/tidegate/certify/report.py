"""The report of a certification, as text and as JSON."""

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from tidegate.certify.run import CheckOutcome, CheckResult

LABELS = {
    CheckOutcome.HELD: ("held", "green"),
    CheckOutcome.FAILED: ("FAILED", "bold red"),
    CheckOutcome.NOT_TRIED: ("not tried", "yellow"),
}


def nothing_failed(results: Sequence[CheckResult]) -> bool:
    """Whether no check failed. A check that was not tried did not fail; the report lists it."""
    return all(result.verdict is not CheckOutcome.FAILED for result in results)


def _report(name: str, results: Sequence[CheckResult]) -> RenderableType:
    failed = [result for result in results if result.verdict is CheckOutcome.FAILED]
    title = Text(f"Certificate of {name}\n", style="bold")
    return Group(title, _table(results), *map(_failure, failed), Text(summary(results)))


def _table(results: Sequence[CheckResult]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("check", "verdict", "promise"):
        table.add_column(column, no_wrap=column != "promise")
    for result in results:
        label, style = LABELS[result.verdict]
        promise = result.check.promise
        if result.verdict is CheckOutcome.NOT_TRIED:
            promise += f"\n({result.reason})"
        table.add_row(result.check.name, Text(label, style=style), Text(promise))
    return table


def _failure(result: CheckResult) -> Text:
    return Text("\n" + failure(result))


def failure(result: CheckResult) -> str:
    """The questions and answers, the expected result, the risk for money, and the fix."""
    check = result.check
    lines = [f"{check.name} FAILED: {check.promise}.", "  what happened:"]
    lines += [f"    {line}" for line in result.story]
    lines += [
        f"  expected:  {result.reason}",
        f"  risk:      {check.loss}",
        f"  fix:       {check.mend}",
    ]
    return "\n".join(lines)


def summary(results: Sequence[CheckResult]) -> str:
    by_verdict = Counter(result.verdict for result in results)
    counts = ", ".join(f"{by_verdict[verdict]} {verdict}" for verdict in CheckOutcome)
    advice = "nothing failed" if nothing_failed(results) else "do not use it with real money"
    return f"\n{counts}: {advice}"


def as_json(name: str, results: Sequence[CheckResult]) -> dict[str, object]:
    return {
        "system": name,
        "certified": nothing_failed(results),
        "checks": [dict(_fields(result)) for result in results],
    }


def _fields(result: CheckResult) -> Iterator[tuple[str, object]]:
    check = result.check
    yield "name", check.name
    yield "verdict", str(result.verdict)
    yield "promise", check.promise
    if result.reason:
        yield "expected" if result.verdict is CheckOutcome.FAILED else "reason", result.reason
    if result.verdict is CheckOutcome.FAILED:
        yield "story", list(result.story)
        yield "loss", check.loss
        yield "mend", check.mend


def print_report(console: Console, name: str, results: Sequence[CheckResult]) -> None:
    console.print(_report(name, results))
