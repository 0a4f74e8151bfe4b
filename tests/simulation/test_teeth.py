"""The simulation finds a planted bug and reports it, and a plan's faults hit the planned calls."""

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

MANY = range(40)  # Seeds. One in eight shows the bug below.


def timeout_as_rejected(
    flow: Flow, transfer: Transfer, answer: Answer, context: DecisionContext
) -> Move:
    """The classic bug: a timeout is treated as a rejection."""
    wrong = Rejected(answer.reason) if isinstance(answer, Unknown) else answer
    return decide(flow, transfer, wrong, context)


def test_no_member_pays_more_than_the_balance_or_the_limit() -> None:
    """Two payments of 200 fit into the limit of 500, and three of 300 into the balance of 1000."""
    result = run(1, FaultPlan(), payers)
    assert result.fault is None
    ends = [e.path[-1] for (_, e), n in result.edges.items() for _ in range(n)]
    assert (ends.count("COMPLETED"), ends.count("REJECTED")) == (2 + 3, 6 + 5)
    assert ends.count("APPROVED") > 5


def single(scene: Scenario) -> None:
    scene.requests = scene.requests[:1]
    scene.workers = 1


def test_treating_a_timeout_as_a_rejection_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tidegate.engine.local_answers, "decide", timeout_as_rejected)
    assert run_seeds(MANY).failures


def test_a_failing_seed_is_printed_with_its_revision_and_its_trace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tidegate.engine.local_answers, "decide", timeout_as_rejected)
    with pytest.raises(Exception) as ended:  # noqa: PT011  Typer exits by a private exception.
        simulate(SimulateOptions(seeds=len(MANY), jobs=1), OutputOptions())
    assert getattr(ended.value, "exit_code", None) == 1
    output = capsys.readouterr().out
    assert "VIOLATION" in output
    assert "at revision" in output
    assert "replay: tidegate simulate --seed" in output


def test_figures_can_be_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    simulate(SimulateOptions(seeds=4, jobs=2), OutputOptions(OutputFormat.JSON))
    output = capsys.readouterr().out
    assert '"seeds": 4' in output
    assert '"violations": 0' in output


def test_seeds_start_at_the_given_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[int] = []

    def note_run(seed: int, *, rules_of: RulesOf = KindRules) -> SeedResult:
        ran.append(seed)
        return run(seed, rules_of=rules_of)

    monkeypatch.setattr(tidegate.simulation.runs, "run", note_run)
    arguments = ["tidegate", "simulate", "--from", "700", "--seeds", "3", "--jobs", "1"]
    monkeypatch.setattr("sys.argv", arguments)
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert sorted(set(ran)) == [700, 701, 702]
    assert "violations                 0" in capsys.readouterr().out


def test_every_failing_seed_is_listed_with_the_command_that_runs_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tidegate.engine.local_answers, "decide", timeout_as_rejected)
    failing = [seed for seed, _ in run_seeds(range(700, 720)).failures]
    with pytest.raises(Exception):  # noqa: B017, PT011  Typer exits by a private exception.
        simulate(SimulateOptions(seeds=20, first=700, jobs=1), OutputOptions(OutputFormat.JSON))
    figures = json.loads(capsys.readouterr().out)
    assert figures["replay"] == [f"tidegate simulate --seed {seed}" for seed in failing]
    assert failing


def test_one_seed_is_printed_with_its_trace(capsys: pytest.CaptureFixture[str]) -> None:
    simulate(SimulateOptions(seed=7), OutputOptions())
    output = capsys.readouterr().out
    assert "faults end" in output
    assert "passed" in output
    assert f"hash {run(7).hash()[:16]}" in output


def test_without_faults_there_are_no_alerts() -> None:
    for seed in range(5):
        plan = FaultPlan()
        scenes: list[Scenario] = []
        result = run(seed, plan, scenes.append)
        assert result.fault is None
        assert scenes[0].world.auditor.pages == 0
        assert plan.calls
        assert not result.faults


def test_the_faults_of_a_plan_hit_the_planned_calls() -> None:
    fault_free = FaultPlan()
    assert run(1, fault_free, single).fault is None
    for number, point in enumerate(fault_free.calls):
        for fault in POINTS[point]:
            plan = FaultPlan({number: fault})
            result = run(1, plan, single)
            assert result.fault is None, f"call {number}, {point}, {fault}: {result.fault}"
            assert result.faults == {(point, fault): 1}


def test_a_plan_with_a_fault_that_its_point_cannot_have_is_an_error() -> None:
    result = run(1, FaultPlan({0: Fault.ENOSPC}, points=("look",)), single)
    assert result.fault is not None
