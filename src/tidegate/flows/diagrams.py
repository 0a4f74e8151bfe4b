"""The pages of docs/flows, out of the tables: a diagram drawn by hand would drift."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tidegate.core.flow import Ask, Flow, Pass
from tidegate.flows import FLOWS

HEAD = "| state | code | place | asks | Done → | Rejected → |\n|---|---:|---|---|---|---|"
ORIGIN = "Written by `python -m tidegate.flows.diagrams docs/flows` out of the flow tables."


def pages(flows: Mapping[str, Flow]) -> Mapping[str, str]:
    """The text of every page, by the name of its file."""
    return {f"{name}.md": page(flow) for name, flow in flows.items()} | {"README.md": index(flows)}


def page(flow: Flow) -> str:
    name, sentence = purpose(flow)
    parts = (
        f"# {name}",
        sentence,
        f"```mermaid\n{flow.mermaid()}```",
        "\n".join((HEAD, *_lines(flow))),
        ORIGIN,
    )
    return "\n\n".join(parts) + "\n"


def index(flows: Mapping[str, Flow]) -> str:
    told = {name: purpose(flow) for name, flow in flows.items()}
    lines = [f"- [{title}]({name}.md): {sentence}" for name, (title, sentence) in told.items()]
    return "\n\n".join(("# Flows", "\n".join(lines), ORIGIN)) + "\n"


def purpose(flow: Flow) -> tuple[str, str]:
    """Name and sentence of a flow: the first line of the module that holds its table."""
    told = sys.modules[type(flow.first).__module__].__doc__ or ""
    name, _, sentence = told.partition("\n")[0].partition(": ")
    assert sentence, f"the module of {flow.name} does not open with «Name: sentence»"
    return name, sentence[0].upper() + sentence[1:]


def _lines(flow: Flow) -> Iterator[str]:
    for state, row in flow.rows.items():
        cells: tuple[str, ...] = ("nobody: the end", "", "")
        match row:
            case Ask():
                no = "stays, and pages" if row.rejected is None else row.rejected
                cells = (f"{row.role}: {row.verb}", row.done, no)
            case Pass():
                cells = (f"nobody, and passes to {row.to}", "", "")
        code = str(flow.codes.get(state, ""))
        yield "| " + " | ".join((state, code, row.place, *cells)) + " |"


def write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages(FLOWS).items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
