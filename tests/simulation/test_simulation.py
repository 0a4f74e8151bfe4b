"""No seed can lose or make money: the real engine among liars, in virtual time."""

from collections import Counter

import pytest

import tidegate.engine.step
from tests.simulation.scenario import run
from tests.simulation.world import Faults
from tidegate.core.answers import Answer, Rejected, Unknown
from tidegate.core.decide import Terms, decide
from tidegate.core.flow import Flow
from tidegate.core.transfer import Move, Transfer

SEEDS = 500
CHUNK = 50
FAST = 100  # The first seeds run in `make check` as well.


@pytest.mark.parametrize(
    "start",
    [pytest.param(n, marks=[pytest.mark.slow] * (n >= FAST)) for n in range(0, SEEDS, CHUNK)],
)
def test_no_seed_loses_or_makes_money(start: int) -> None:
    states: Counter[str] = Counter()
    for seed in range(start, start + CHUNK):
        try:
            states += run(seed).states
        except AssertionError as fault:
            raise AssertionError(f"seed {seed}: {fault}") from fault
    assert set(states) == {"COMMITTED", "FAILED", "ROLLED_BACK"}, "a way to end was never taken"


def test_the_same_seed_is_the_same_run() -> None:
    assert [run(seed).trace for seed in range(20)] == [run(seed).trace for seed in range(20)]


def test_every_fault_happens() -> None:
    faults: Counter[str] = Counter()
    for seed in range(60):
        faults += run(seed).faults
    assert min(faults.values()) > 10, faults
    assert faults.keys() == Faults.__dataclass_fields__.keys()


def test_treating_a_timeout_as_a_no_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proof that the simulation has teeth: the oldest mistake of the trade must fail it."""

    def hasty(flow: Flow, transfer: Transfer, answer: Answer, terms: Terms) -> Move:
        taken = Rejected(answer.reason) if isinstance(answer, Unknown) else answer
        return decide(flow, transfer, taken, terms)

    monkeypatch.setattr(tidegate.engine.step, "decide", hasty)
    caught = 0
    for seed in range(40):
        try:
            run(seed)
        except AssertionError:
            caught += 1
    assert caught > 10, f"only {caught} of 40 seeds noticed"
