"""The effects that the auditor allows are derived from the flow table."""

from tidegate.flows import FLOWS
from tidegate.flows.deposit import DEPOSIT
from tidegate.flows.internal_transfer import INTERNAL_TRANSFER
from tidegate.simulation.effects import allowed, reachable

LABELS = ("source.debit", "target.credit", "source.refund")
ALLOWED = {
    "INIT": {"000"},
    "SOURCE_PENDING": {"000", "100"},
    "SOURCE_DONE": {"100"},
    "TARGET_PENDING": {"100", "110"},
    "COMMITTED": {"110"},
    "FAILED": {"000"},
    "COMPENSATING": {"100", "101"},
    "ROLLED_BACK": {"101"},
}


def digits(effects: tuple[str, ...]) -> str:
    return "".join(str(effects.count(label)) for label in LABELS)


def test_the_eight_states_of_the_internal_transfer() -> None:
    found = allowed(INTERNAL_TRANSFER)
    assert {state: set(map(digits, sets)) for state, sets in found.items()} == ALLOWED


def test_a_credit_to_suspense_differs_from_a_credit_to_the_target() -> None:
    assert allowed(DEPOSIT)["SUSPENDED"] == {("source.debit", "suspense.credit")}
    assert allowed(DEPOSIT)["COMPLETED"] == {("source.debit", "target.credit")}


def test_every_state_of_every_flow_allows_some_effects() -> None:
    for flow in FLOWS.values():
        assert all(allowed(flow).values())


def test_a_rejected_stays_only_without_a_column_or_before_an_undo() -> None:
    for flow in FLOWS.values():
        for edge in reachable(flow):
            assert edge in set(flow.answers())
    paths = {edge.path for edge in reachable(INTERNAL_TRANSFER)}
    assert ("TARGET_PENDING", "TARGET_PENDING") in paths
    assert ("COMPENSATING", "COMPENSATING") in paths
    assert ("INIT", "SOURCE_PENDING", "SOURCE_PENDING") not in paths
    assert ("SOURCE_PENDING", "FAILED") not in paths
