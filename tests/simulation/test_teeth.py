"""The simulation has teeth: planted bugs are found, and a plan strikes where it says."""

import json

import pytest

import tidegate.engine.local_answers
import tidegate.simulation.runs
from tests.simulation.searches import payers
from tidegate.cli import main
from tidegate.commands.console import OutputFormat, OutputOptions
from tidegate.commands.simulate import SimulateOptions, simulate
from tidegate.core.answers import Answer, Rejected, Unknown
from tidegate.core.decide import DecisionContext, decide
from tidegate.core.flow import Flow
from tidegate.core.kind import Transfer
from tidegate.core.transfer import Move
from tidegate.engine.kind_rules import KindRules, RulesOf
from tidegate.simulation.faults import POINTS, Fault, FaultPlan
from tidegate.simulation.result import SeedResult
from tidegate.simulation.runs import run_seeds
from tidegate.simulation.scenario import Scenario, run

MANY = range(40)  # Seeds. The mistake below shows in one of eight.


def hasty(flow: Flow, transfer: Transfer, answer: Answer, terms: DecisionContext) -> Move:
    """The oldest mistake of the trade: a timeout taken for a «no»."""
    taken = Rejected(answer.reason) if isinstance(answer, Unknown) else answer
    return decide(flow, transfer, taken, terms)


def test_nobody_spends_more_than_they_have_or_may() -> None:
    """Two of 200 are within the limit of 500, and three of 300 within a balance of 1000."""
    result = run(1, FaultPlan(), payers)
    assert result.fault is None
    ends = [e.path[-1] for (_, e), n in result.edges.items() for _ in range(n)]
    assert (ends.count("COMPLETED"), ends.count("REJECTED")) == (2 + 3, 6 + 5)
    assert ends.count("APPROVED") > 5


def single(scene: Scenario) -> None:
    scene.wishes = scene.wishes[:1]
    scene.nodes = 1


def test_treating_a_timeout_as_a_no_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tidegate.engine.local_answers, "decide", hasty)
    assert run_seeds(MANY).failures


def test_a_failing_seed_is_told_with_its_revision_and_its_story(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tidegate.engine.local_answers, "decide", hasty)
    with pytest.raises(Exception) as ended:  # noqa: PT011  Typer's way to leave, of no name.
        simulate(SimulateOptions(seeds=len(MANY), jobs=1), OutputOptions())
    assert getattr(ended.value, "exit_code", None) == 1
    said = capsys.readouterr().out
    assert "VIOLATION" in said
    assert "at revision" in said
    assert "again: tidegate simulate --seed" in said


def test_figures_are_for_programs_too(capsys: pytest.CaptureFixture[str]) -> None:
    simulate(SimulateOptions(seeds=4, jobs=2), OutputOptions(OutputFormat.JSON))
    said = capsys.readouterr().out
    assert '"seeds": 4' in said
    assert '"violations": 0' in said


def test_seeds_begin_where_one_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[int] = []

    def noted(seed: int, *, rules_of: RulesOf = KindRules) -> SeedResult:
        ran.append(seed)
        return run(seed, rules_of=rules_of)

    monkeypatch.setattr(tidegate.simulation.runs, "run", noted)
    words = ["tidegate", "simulate", "--from", "700", "--seeds", "3", "--jobs", "1"]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert sorted(set(ran)) == [700, 701, 702]
    assert "violations                 0" in capsys.readouterr().out


def test_every_failing_seed_is_told_with_the_command_that_runs_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tidegate.engine.local_answers, "decide", hasty)
    failing = [seed for seed, _ in run_seeds(range(700, 720)).failures]
    with pytest.raises(Exception):  # noqa: B017, PT011  Typer's way to leave, of no name.
        simulate(SimulateOptions(seeds=20, first=700, jobs=1), OutputOptions(OutputFormat.JSON))
    said = json.loads(capsys.readouterr().out)
    assert said["replay"] == [f"tidegate simulate --seed {seed}" for seed in failing]
    assert failing


def test_one_seed_tells_its_story(capsys: pytest.CaptureFixture[str]) -> None:
    simulate(SimulateOptions(seed=7), OutputOptions())
    said = capsys.readouterr().out
    assert "heals" in said
    assert "nothing went wrong" in said
    assert f"hash {run(7).hash()[:16]}" in said


def test_without_faults_nobody_is_called() -> None:
    for seed in range(5):
        plan = FaultPlan()
        scenes: list[Scenario] = []
        result = run(seed, plan, scenes.append)
        assert result.fault is None
        assert scenes[0].world.auditor.pages == 0
        assert plan.calls
        assert not result.faults


def test_a_plan_strikes_the_call_that_it_names() -> None:
    calm = FaultPlan()
    assert run(1, calm, single).fault is None
    for number, point in enumerate(calm.calls):
        for fault in POINTS[point]:
            plan = FaultPlan({number: fault})
            result = run(1, plan, single)
            assert result.fault is None, f"call {number}, {point}, {fault}: {result.fault}"
            assert result.faults == {(point, fault): 1}


def test_a_plan_names_only_what_can_happen() -> None:
    result = run(1, FaultPlan({0: Fault.ENOSPC}, points=("look",)), single)
    assert result.fault is not None
