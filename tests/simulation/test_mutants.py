"""Every planted bug is found within its budget, and without a planted bug nothing is found."""

import json
import re

import pytest

from tests.simulation import mutants
from tests.simulation.mutants import MUTANTS, Mutant, caught, false_alarms, is_expected
from tests.simulation.searches import Search

LEAST = 28
SEARCHES = {id(mutant.search): mutant.search for mutant in MUTANTS}.values()


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_a_planted_bug_is_found(mutant: Mutant) -> None:
    trial = caught(mutant)
    assert trial is not None, f"not caught: {mutant.description}"
    assert is_expected(mutant, trial), f"{trial.name} shows something else: {trial.fault}"
    print(f"{mutant.name}: {trial.name}")
    # Without the bug, the same trials find nothing: so the bug caused the fault.
    for unpatched in mutant.search.trials():
        assert not unpatched.fault, f"{unpatched.name} without the bug: {unpatched.fault}"
        if unpatched.name == trial.name:
            break
    else:
        pytest.fail(f"{trial.name} is not tried without the bug")


@pytest.mark.slow
@pytest.mark.parametrize("search", SEARCHES, ids=[search.name for search in SEARCHES])
def test_without_a_planted_bug_nothing_is_found_in_the_whole_budget(search: Search) -> None:
    assert false_alarms(search) == []


def test_every_bug_is_listed_once_and_described_by_a_sentence() -> None:
    assert len(MUTANTS) >= LEAST
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert len({mutant.plant for mutant in MUTANTS}) == len(MUTANTS)
    for mutant in MUTANTS:
        assert re.fullmatch(r"[A-Z][^\n]+\.", mutant.description), mutant.name


def test_the_figures_can_be_printed_as_json_and_as_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["mutants", "-o", "json", "refund_on_timeout", "float_amount"])
    assert mutants.main() == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["mutants"], figures["mutants_caught"]) == (2, 2)
    assert all(re.fullmatch(r"seed \d+.*", name) for name in figures["caught"].values())
    monkeypatch.setattr("sys.argv", ["mutants", "refund_on_timeout"])
    assert mutants.main() == 0
    assert "1 of 1 caught" in capsys.readouterr().out
