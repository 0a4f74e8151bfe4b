"""Exhaustive fault plans: one fault at every call, then two. The end state never changes."""

import gc
import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path as FilePath

import pytest

import tidegate.engine.local_answers
from tests.simulation.fresh_seeds import ROOT, fresh_start
from tests.simulation.paths import GUILD_FLOWS, PATHS, Path, missing_answers
from tests.simulation.plans import Branch, Tally, attempt, grow, is_usual, root
from tests.simulation.touched import AFFECTED, UNAFFECTED, changed_files, plan_limit, sample
from tidegate.core.answers import Answer, Rejected, Unknown
from tidegate.core.decide import DecisionContext, decide
from tidegate.core.flow import Flow
from tidegate.core.kind import Transfer
from tidegate.core.transfer import Move
from tidegate.flows import FLOWS
from tidegate.flows.deposit import DEPOSIT
from tidegate.simulation.faults import KINDS, WORKER_POINTS
from tidegate.simulation.scenario import LIVENESS_S, Scenario
from tidegate.simulation.workload import SPOT

PLANS = 13_000
OTHER_SEEDS = (2, 3)
NUMBERS = range(len(PATHS))
CHANGED = changed_files(ROOT)
every_path = pytest.mark.parametrize("number", NUMBERS, ids=map(str, PATHS))


@cache
def first(number: int) -> tuple[Branch, Tally, list[Branch]]:
    """The fault-free run of a path and all plans with one fault. Cached per process."""
    branch = root(number)
    return branch, *grow(branch)


def check(tally: Tally) -> None:
    assert not tally.failures, "\n".join(map(str, tally.failures))
    assert tally.violations == 0
    assert 0 < tally.slowest_s <= LIVENESS_S


def test_every_answer_that_a_flow_can_get_is_on_a_path() -> None:
    """A new flow is complete only when its paths are in PATHS."""
    assert missing_answers(FLOWS.values()) == []


def test_a_flow_without_paths_is_reported() -> None:
    other = Flow("other", first=DEPOSIT.first, rows=DEPOSIT.rows)
    assert "other: CREDITING>COMPLETED done" in missing_answers([other])


def test_every_end_state_of_every_flow_is_the_end_of_a_path() -> None:
    ends = {(path.flow, path.end) for path in PATHS}
    assert ends == {
        (flow.name, str(state))
        for flow in FLOWS.values()
        for state in flow.rows
        if flow.is_end(state)
    }


def test_path_names_are_unique() -> None:
    assert len(set(map(str, PATHS))) == len(PATHS)


@every_path
def test_one_fault_does_not_change_the_end(number: int) -> None:
    branch, tally, found = first(number)
    check(tally)
    assert tally.plans.total() == branch.width == len(found)


@pytest.mark.slow
def test_there_are_thirteen_thousand_plans_with_every_fault_of_a_worker() -> None:
    """The plans are counted here. `make proof` runs all of them, a test run only some."""
    total, remaining = Tally(), 0
    for number in NUMBERS:
        _, tally, found = first(number)
        total.merge(tally)
        remaining += sum(branch.width for branch in found)
    assert total.plans.total() + remaining >= PLANS
    # Points that are called only after a fault get their faults as the second one.
    later = [kind for kind in KINDS if kind[0] in total.called and not total.injected[kind]]
    assert set(WORKER_POINTS) <= total.called
    assert all(is_usual(*kind) for kind in later if kind[0] in WORKER_POINTS)


@pytest.mark.slow
@every_path
def test_two_faults_do_not_change_the_end(number: int) -> None:
    """All plans of a flow whose table was changed, and a sample of the others."""
    _, _, found = first(number)
    growing = [branch for branch in found if branch.width]
    width, limit = sum(branch.width for branch in growing), plan_limit(PATHS[number], CHANGED)
    chosen = sample(growing, width, limit, fresh_start())
    total = Tally()
    for branch in chosen:
        tally, _ = grow(branch)
        total.merge(tally)
    check(total)
    assert total.plans.total() == sum(branch.width for branch in chosen)
    assert limit is not None or list(chosen) == growing


def test_a_changed_table_needs_all_plans_of_its_flow() -> None:
    changed = {"src/tidegate/flows/deposit.py", "README.md"}
    limits = {(path.flow, plan_limit(path, changed)) for path in PATHS}
    assert {limit for flow, limit in limits if flow == "deposit"} == {None}
    assert {limit for flow, limit in limits if flow != "deposit"} == {UNAFFECTED}


@pytest.mark.parametrize(
    ("file", "is_affected"),
    [
        ("src/tidegate/engine/step.py", lambda path: True),
        ("src/tidegate/store/memory_store.py", lambda path: True),
        ("tests/simulation/paths.py", lambda path: True),
        ("src/tidegate/systems/guild/judge.py", lambda path: path.flow in GUILD_FLOWS),
        ("src/tidegate/trading_core/wal.py", lambda path: SPOT in path.roles.values()),
        ("src/tidegate/service/api.py", lambda path: False),
        ("docs/api.md", lambda path: False),
    ],
)
def test_a_change_needs_more_plans_of_the_paths_that_it_affects(
    file: str, is_affected: Callable[[Path], bool]
) -> None:
    for path in PATHS:
        assert plan_limit(path, [file]) == (AFFECTED if is_affected(path) else UNAFFECTED), path
        assert plan_limit(path, None) == AFFECTED, "if the change is not known"


def test_the_samples_of_all_commits_are_all_plans() -> None:
    branches = list(range(50))
    drawn = [sample(branches, 5_000, 500, number) for number in range(10)]
    assert sorted(branch for branches_ in drawn for branch in branches_) == branches
    assert all(len(branches_) == 5 for branches_ in drawn)
    assert sample(branches, 5_000, None, 7) == branches
    assert sample(branches, 300, 500, 7) == branches
    assert len(sample(branches, 10**6, 1, 123)) == 1, "a sample is never empty"


def test_changed_files_are_read_from_git(tmp_path: FilePath) -> None:
    def git(*arguments: str) -> None:
        user = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        command = ["git", "-C", str(tmp_path), *user, *arguments]
        subprocess.run(command, check=True, capture_output=True)

    def commit(name: str) -> None:
        (tmp_path / name).write_text(name)
        git("add", "-A")
        git("commit", "-qm", name)

    assert changed_files(tmp_path) is None, "not a repository"
    git("init", "-qb", "main")
    commit("first")
    assert changed_files(tmp_path) is None, "no commit before it"
    commit("second")
    assert changed_files(tmp_path) == frozenset({"second"})
    git("switch", "-qc", "branch")
    commit("third")
    commit("fourth")
    (tmp_path / "fifth").write_text("not committed")
    (tmp_path / "first").write_text("changed")
    assert changed_files(tmp_path) == frozenset({"first", "third", "fourth", "fifth"})


@pytest.mark.slow
@pytest.mark.parametrize("seed", OTHER_SEEDS)
def test_one_fault_does_not_change_the_end_with_another_seed(seed: int) -> None:
    """The seed determines the order of tasks, the delays and the effects of a crash."""
    total = Tally()
    for number in NUMBERS:
        tally, _ = grow(root(number, seed), seed)
        total.merge(tally)
    check(total)


def timeout_as_rejected(
    flow: Flow, transfer: Transfer, answer: Answer, context: DecisionContext
) -> Move:
    """A timeout is treated as a rejection."""
    wrong = Rejected(answer.reason) if isinstance(answer, Unknown) else answer
    return decide(flow, transfer, wrong, context)


def test_a_plan_that_fails_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tidegate.engine.local_answers, "decide", timeout_as_rejected)
    tally, _ = grow(root(0))
    assert 0 < tally.violations < tally.plans.total()
    path, [(_, fault)], text = tally.failures[0]
    assert path == str(PATHS[0])
    assert fault
    assert text


@pytest.mark.slow
def test_the_figures_can_be_printed_as_json() -> None:
    command = [sys.executable, "-m", "tests.simulation.plans", "--depth", "1", "-o", "json"]
    child = subprocess.run(command, capture_output=True, text=True, check=True)
    figures = json.loads(child.stdout)
    assert figures["violations"] == 0
    assert figures["paths"].keys() == set(map(str, PATHS))
    assert figures["plans"] == sum(path["depth 1"] for path in figures["paths"].values())


def test_a_plan_leaves_no_garbage_in_memory() -> None:
    """One process runs hundreds of thousands of plans, with the garbage collector switched off."""

    def scenarios() -> int:
        return sum(isinstance(value, Scenario) for value in gc.get_objects())

    gc.collect()
    before = scenarios()
    for _ in range(8):
        attempt(PATHS[0])
    assert scenarios() - before <= 2
