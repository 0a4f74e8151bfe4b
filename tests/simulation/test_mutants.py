"""Every planted bug is found within the budget, and nothing is found where none is planted."""

import json
import re

import pytest

from tests.simulation import mutants
from tests.simulation.mutants import MUTANTS, Mutant, caught, false_alarms, right
from tests.simulation.searches import Search

LEAST = 28
HUNTS = {id(mutant.hunt): mutant.hunt for mutant in MUTANTS}.values()


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_a_planted_bug_is_found(mutant: Mutant) -> None:
    trial = caught(mutant)
    assert trial is not None, f"not caught: {mutant.why}"
    assert right(mutant, trial), f"{trial.name} shows something else: {trial.fault}"
    print(f"{mutant.name}: {trial.name}")
    # Without it there is nothing to be found up to there: it was this one.
    for honest in mutant.hunt.trials():
        assert not honest.fault, f"{honest.name} without the bug: {honest.fault}"
        if honest.name == trial.name:
            break
    else:
        pytest.fail(f"{trial.name} is not tried where no bug is planted")


@pytest.mark.slow
@pytest.mark.parametrize("hunt", HUNTS, ids=[hunt.name for hunt in HUNTS])
def test_where_no_bug_is_planted_none_is_found_in_the_whole_budget(hunt: Search) -> None:
    assert false_alarms(hunt) == []


def test_every_bug_tells_its_story_once() -> None:
    assert len(MUTANTS) >= LEAST
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert len({mutant.plant for mutant in MUTANTS}) == len(MUTANTS)
    for mutant in MUTANTS:
        assert re.fullmatch(r"[A-Z][^\n]+\.", mutant.why), mutant.name


def test_the_figures_are_for_programs_and_for_people(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["mutants", "-o", "json", "refund_on_timeout", "float_amount"])
    assert mutants.main() == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["mutants"], said["mutants_caught"]) == (2, 2)
    assert all(re.fullmatch(r"seed \d+.*", name) for name in said["caught"].values())
    monkeypatch.setattr("sys.argv", ["mutants", "refund_on_timeout"])
    assert mutants.main() == 0
    assert "1 of 1 caught" in capsys.readouterr().out
