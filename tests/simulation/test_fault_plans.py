"""Exhaustive fault plans: one fault at every call, then two. None changes where a transfer ends."""

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
from tests.simulation.paths import GUILD_FLOWS, PATHS, Path, unwalked
from tests.simulation.plans import Branch, Tally, attempt, grow, is_usual, root
from tests.simulation.touched import REACHED, UNREACHED, changed_files, most, sample
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
    """A path on which nothing fails, and all plans that fail once: tried once in a process."""
    branch = root(number)
    return branch, *grow(branch)


def held(tally: Tally) -> None:
    assert not tally.failures, "\n".join(map(str, tally.failures))
    assert tally.violations == 0
    assert 0 < tally.slowest_s <= LIVENESS_S


def test_every_answer_that_a_flow_can_get_is_on_a_path() -> None:
    """A flow that is not simulated is not finished: its paths belong into PATHS."""
    assert unwalked(FLOWS.values()) == []


def test_a_flow_without_paths_is_noticed() -> None:
    other = Flow("other", first=DEPOSIT.first, rows=DEPOSIT.rows)
    assert "other: CREDITING>COMPLETED done" in unwalked([other])


def test_every_end_of_every_flow_is_the_end_of_a_path() -> None:
    ends = {(path.flow, path.end) for path in PATHS}
    assert ends == {
        (flow.name, str(state))
        for flow in FLOWS.values()
        for state in flow.rows
        if flow.is_end(state)
    }


def test_paths_have_names_of_their_own() -> None:
    assert len(set(map(str, PATHS))) == len(PATHS)


@every_path
def test_whatever_fails_once_the_end_is_the_same(number: int) -> None:
    branch, tally, found = first(number)
    held(tally)
    assert tally.plans.total() == branch.width == len(found)


@pytest.mark.slow
def test_there_are_thirteen_thousand_plans_with_every_fault_of_a_worker() -> None:
    """They are counted here. `make proof` carries out all of them, and this run a part."""
    total, foreseen = Tally(), 0
    for number in NUMBERS:
        _, tally, found = first(number)
        total.merge(tally)
        foreseen += sum(branch.width for branch in found)
    assert total.plans.total() + foreseen >= PLANS
    # What is called only after a fault is struck by the second.
    later = [kind for kind in KINDS if kind[0] in total.called and not total.struck[kind]]
    assert set(WORKER_POINTS) <= total.called
    assert all(is_usual(*kind) for kind in later if kind[0] in WORKER_POINTS)


@pytest.mark.slow
@every_path
def test_whatever_fails_twice_the_end_is_the_same(number: int) -> None:
    """All plans of a flow whose table was changed, and a sample of the others."""
    _, _, found = first(number)
    growing = [branch for branch in found if branch.width]
    width, limit = sum(branch.width for branch in growing), most(PATHS[number], CHANGED)
    chosen = sample(growing, width, limit, fresh_start())
    total = Tally()
    for branch in chosen:
        tally, _ = grow(branch)
        total.merge(tally)
    held(total)
    assert total.plans.total() == sum(branch.width for branch in chosen)
    assert limit is not None or list(chosen) == growing


def test_a_changed_table_asks_for_all_plans_of_its_flow() -> None:
    changed = {"src/tidegate/flows/deposit.py", "README.md"}
    limits = {(path.flow, most(path, changed)) for path in PATHS}
    assert {limit for flow, limit in limits if flow == "deposit"} == {None}
    assert {limit for flow, limit in limits if flow != "deposit"} == {UNREACHED}


@pytest.mark.parametrize(
    ("file", "reached"),
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
def test_a_change_asks_for_more_plans_where_it_reaches(
    file: str, reached: Callable[[Path], bool]
) -> None:
    for path in PATHS:
        assert most(path, [file]) == (REACHED if reached(path) else UNREACHED), path
        assert most(path, None) == REACHED, "where nothing is known of the change"


def test_the_samples_of_all_commits_are_all_plans() -> None:
    branches = list(range(50))
    drawn = [sample(branches, 5_000, 500, number) for number in range(10)]
    assert sorted(branch for some in drawn for branch in some) == branches
    assert all(len(some) == 5 for some in drawn)
    assert sample(branches, 5_000, None, 7) == branches
    assert sample(branches, 300, 500, 7) == branches
    assert len(sample(branches, 10**6, 1, 123)) == 1, "never none at all"


def test_what_a_change_touches_is_read_from_git(tmp_path: FilePath) -> None:
    def git(*words: str) -> None:
        who = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True)

    def commit(name: str) -> None:
        (tmp_path / name).write_text(name)
        git("add", "-A")
        git("commit", "-qm", name)

    assert changed_files(tmp_path) is None, "no repository"
    git("init", "-qb", "main")
    commit("first")
    assert changed_files(tmp_path) is None, "nothing before it"
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
def test_whatever_fails_once_in_another_order_of_things(seed: int) -> None:
    """The seed decides who runs first, how long things take and what a crash leaves behind."""
    total = Tally()
    for number in NUMBERS:
        tally, _ = grow(root(number, seed), seed)
        total.merge(tally)
    held(total)


def hasty(flow: Flow, transfer: Transfer, answer: Answer, terms: DecisionContext) -> Move:
    """A timeout taken for a «no»."""
    taken = Rejected(answer.reason) if isinstance(answer, Unknown) else answer
    return decide(flow, transfer, taken, terms)


def test_a_plan_that_goes_wrong_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tidegate.engine.local_answers, "decide", hasty)
    tally, _ = grow(root(0))
    assert 0 < tally.violations < tally.plans.total()
    path, [(_, fault)], text = tally.failures[0]
    assert path == str(PATHS[0])
    assert fault
    assert text


@pytest.mark.slow
def test_the_figures_are_for_programs_too() -> None:
    command = [sys.executable, "-m", "tests.simulation.plans", "--depth", "1", "-o", "json"]
    said = subprocess.run(command, capture_output=True, text=True, check=True)
    figures = json.loads(said.stdout)
    assert figures["violations"] == 0
    assert figures["paths"].keys() == set(map(str, PATHS))
    assert figures["plans"] == sum(path["depth 1"] for path in figures["paths"].values())


def test_a_plan_leaves_nothing_behind_in_memory() -> None:
    """There are hundreds of thousands of them in one process, and Python collects in none."""

    def kept() -> int:
        return sum(isinstance(each, Scenario) for each in gc.get_objects())

    gc.collect()
    before = kept()
    for _ in range(8):
        attempt(PATHS[0])
    assert kept() - before <= 2
