"""The certificate as a person reads it, and as a program does."""

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from tidegate.certify.run import CheckOutcome, CheckResult

MARKS = {
    CheckOutcome.HELD: ("held", "green"),
    CheckOutcome.FAILED: ("FAILED", "bold red"),
    CheckOutcome.NOT_TRIED: ("not tried", "yellow"),
}


def holds(findings: Sequence[CheckResult]) -> bool:
    """Nothing failed. What was not tried is told, and neither held nor failed."""
    return all(finding.verdict is not CheckOutcome.FAILED for finding in findings)


def page(name: str, findings: Sequence[CheckResult]) -> RenderableType:
    failed = [finding for finding in findings if finding.verdict is CheckOutcome.FAILED]
    title = Text(f"Certificate of {name}\n", style="bold")
    return Group(title, _table(findings), *map(_failure, failed), Text(summary(findings)))


def _table(findings: Sequence[CheckResult]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("check", "verdict", "promise"):
        table.add_column(column, no_wrap=column != "promise")
    for finding in findings:
        word, style = MARKS[finding.verdict]
        promise = finding.check.promise
        if finding.verdict is CheckOutcome.NOT_TRIED:
            promise += f"\n({finding.why})"
        table.add_row(finding.check.name, Text(word, style=style), Text(promise))
    return table


def _failure(finding: CheckResult) -> Text:
    return Text("\n" + failure(finding))


def failure(finding: CheckResult) -> str:
    """What was asked, what came back, why money would be lost, and how to mend it."""
    check = finding.check
    lines = [f"{check.name} FAILED: {check.promise}.", "  what happened:"]
    lines += [f"    {line}" for line in finding.story]
    lines += [
        f"  expected:  {finding.why}",
        f"  the loss:  {check.loss}",
        f"  mend it:   {check.mend}",
    ]
    return "\n".join(lines)


def summary(findings: Sequence[CheckResult]) -> str:
    counts = Counter(finding.verdict for finding in findings)
    told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in CheckOutcome)
    verdict = "nothing failed" if holds(findings) else "do not let it near money"
    return f"\n{told}: {verdict}"


def as_json(name: str, findings: Sequence[CheckResult]) -> dict[str, object]:
    return {
        "system": name,
        "certified": holds(findings),
        "checks": [dict(_fields(finding)) for finding in findings],
    }


def _fields(finding: CheckResult) -> Iterator[tuple[str, object]]:
    check = finding.check
    yield "name", check.name
    yield "verdict", str(finding.verdict)
    yield "promise", check.promise
    if finding.why:
        yield "expected" if finding.verdict is CheckOutcome.FAILED else "reason", finding.why
    if finding.verdict is CheckOutcome.FAILED:
        yield "story", list(finding.story)
        yield "loss", check.loss
        yield "mend", check.mend


def print_page(console: Console, name: str, findings: Sequence[CheckResult]) -> None:
    console.print(page(name, findings))
