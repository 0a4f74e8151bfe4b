"""The pages of docs/flows agree with the flow tables."""

import runpy
import sys
from enum import StrEnum
from pathlib import Path

import pytest

from tests.core.samples import ALL_FLOWS
from tidegate.core.flow import End, Flow, Place
from tidegate.flows import FLOWS, diagrams

DOCS = Path(__file__).parents[2] / "docs" / "flows"


def test_no_page_is_outdated_or_left_over() -> None:
    existing = {path.name: path.read_text(encoding="utf-8") for path in DOCS.iterdir()}
    assert existing == diagrams.pages(FLOWS), "run: python -m tidegate.flows.diagrams docs/flows"


def test_a_page_has_the_diagram_and_a_row_for_every_state() -> None:
    for flow in FLOWS.values():
        text = diagrams.page(flow)
        assert f"```mermaid\n{flow.mermaid()}```" in text
        for state in flow.rows:
            assert text.count(f"\n| {state} |") == 1


def test_a_row_shows_the_question_and_the_state_after_each_answer() -> None:
    lines = diagrams.page(FLOWS["internal_transfer"]).splitlines()
    assert "| INIT | 0 | source | nothing: passes on to SOURCE_PENDING |  |  |" in lines
    assert "| SOURCE_PENDING | 10 | source | source: debit | SOURCE_DONE | FAILED |" in lines
    assert "| FAILED | -10 | source | nothing: end |  |  |" in lines
    refused = "| COMPENSATING | -20 | in flight | source: refund | ROLLED_BACK | stays and pages |"
    assert refused in lines


def test_the_index_links_to_every_flow() -> None:
    text = diagrams.index(FLOWS)
    assert all(f"({name}.md)" in text for name in FLOWS)


class Undescribed(StrEnum):
    ONLY = "ONLY"


def test_the_module_of_a_flow_must_describe_it_in_a_sentence() -> None:
    assert diagrams.purpose(ALL_FLOWS[-1])[0] == "Values for the tests of the core"
    Undescribed.__module__ = "tests.flows"
    with pytest.raises(AssertionError, match="does not begin with"):
        diagrams.purpose(
            Flow("alone", first=Undescribed.ONLY, rows={Undescribed.ONLY: End(Place.SOURCE)})
        )


def test_the_pages_are_written_to_the_given_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "docs" / "flows"
    monkeypatch.setattr(sys, "argv", ["diagrams", str(folder)])
    runpy.run_path(str(diagrams.__file__), run_name="__main__")
    written = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
    assert written == diagrams.pages(FLOWS)
