"""The pages of docs/flows are what the tables say today."""

import runpy
import sys
from enum import StrEnum
from pathlib import Path

import pytest

from tests.core.samples import ALL_FLOWS
from tidegate.core.flow import End, Flow, Place
from tidegate.flows import FLOWS, diagrams

DOCS = Path(__file__).parents[2] / "docs" / "flows"


def test_no_page_is_stale_and_none_is_left_over() -> None:
    lying = {path.name: path.read_text(encoding="utf-8") for path in DOCS.iterdir()}
    assert lying == diagrams.pages(FLOWS), "run: python -m tidegate.flows.diagrams docs/flows"


def test_a_page_has_the_diagram_and_a_line_for_every_state() -> None:
    for flow in FLOWS.values():
        text = diagrams.page(flow)
        assert f"```mermaid\n{flow.mermaid()}```" in text
        for state in flow.rows:
            assert text.count(f"\n| {state} |") == 1


def test_a_line_says_who_is_asked_what_and_where_the_answers_lead() -> None:
    lines = diagrams.page(FLOWS["internal_transfer"]).splitlines()
    assert "| INIT | 0 | source | nobody, and passes to SOURCE_PENDING |  |  |" in lines
    assert "| SOURCE_PENDING | 10 | source | source: debit | SOURCE_DONE | FAILED |" in lines
    assert "| FAILED | -10 | source | nobody: the end |  |  |" in lines
    refused = "| COMPENSATING | -20 | in flight | source: refund | ROLLED_BACK | stays, and pages |"
    assert refused in lines


def test_the_index_leads_to_every_flow() -> None:
    text = diagrams.index(FLOWS)
    assert all(f"({name}.md)" in text for name in FLOWS)


class Alone(StrEnum):
    HERE = "HERE"


def test_a_flow_must_say_in_a_sentence_what_it_is_for() -> None:
    undescribed = ALL_FLOWS[-1]
    assert diagrams.purpose(undescribed)[0] == "Values for the tests of the core"
    Alone.__module__ = "tests.flows"
    with pytest.raises(AssertionError, match="does not open with"):
        diagrams.purpose(Flow("alone", first=Alone.HERE, rows={Alone.HERE: End(Place.SOURCE)}))


def test_the_pages_are_written_where_one_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "docs" / "flows"
    monkeypatch.setattr(sys, "argv", ["diagrams", str(folder)])
    runpy.run_path(str(diagrams.__file__), run_name="__main__")
    written = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
    assert written == diagrams.pages(FLOWS)
