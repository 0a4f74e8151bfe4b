"""`python -m bench.page`: writes the figures of the last run into bench/README.md."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench import checksums, machine, report

PAGE = Path(__file__).parent / "README.md"
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"


def markdown(found: report.Report) -> str:
    """All figures as Markdown tables."""
    if not found:
        return "There is no run yet."
    run, settings = found.get("measured", {}), found.get("postgresql", {})
    conditions = ", ".join(f"{name} {value}" for name, value in run.items())
    pinned = ", ".join(f"{name} {value}" for name, value in sorted(settings.items()))
    cases = report.rows(found.get("cases", {}), found.get("missing", {}))
    parts = [f"Measured: {conditions}. PostgreSQL: {pinned}.", *surroundings(found), ratios(found)]
    parts += [f"Of each case {report.SPREAD}:"]
    parts += [grid((*report.COLUMNS, *report.MORE), cases), "![Transfers per second](latest.svg)"]
    return "\n\n".join(parts).replace("(latest.svg)", "(results/latest.svg)")


def surroundings(found: report.Report) -> list[str]:
    """The speed of the machine, and the checksums of the code that others are compared with."""
    parts = []
    if speeds := found.get("machine_speed"):
        parts.append(f"The machine's own speed before each round: {machine.text_of(speeds)}.")
    if by_part := found.get("scale", {}).get("machine_speed"):
        text = machine.text_of(machine.over_parts(by_part))
        parts.append(f"The same before each part of the scale: {text}.")
    if digests := found.get("checksums"):
        parts.append(
            "SHA-256 of the literal protocol, the peers and the load generator, the first"
            f" digits: {checksums.text_of(digests)}."
        )
    return parts


def ratios(found: report.Report) -> str:
    measured, ranges = found.get("ratios", {}), found.get("ratio_ranges", {})
    rows = [
        [
            f"`{name}`",
            f"{measured[name]:,.4g}" if name in measured else "not measured",
            " to ".join(f"{value:,.4g}" for value in ranges.get(name, ())),
            f"{least:,g}",
            f"{goal:,g}",
            report.verdict(name, measured),
        ]
        for name, (least, goal, _) in report.TARGETS.items()
    ]
    return grid(("ratio", "measured", "in any round", "at least", "goal", ""), rows)


def grid(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head)]
    lines += [[*row, *[""] * (len(head) - len(row))] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    figures = markdown(report.load())
    PAGE.write_text(f"{before}{BEGIN}\n{figures}\n{END}{after}", encoding="utf-8")
    sys.stdout.write(f"{PAGE} contains the figures of {report.LATEST.name}\n")


if __name__ == "__main__":
    main()
