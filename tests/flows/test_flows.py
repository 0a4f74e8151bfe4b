"""The list of flows: each under its own name, and each of its states with one meaning."""

from tidegate.flows import FLOWS


def test_every_flow_is_found_under_its_name() -> None:
    names = "internal_transfer deposit external_withdrawal pool_transfer member_transfer"
    assert list(FLOWS) == names.split()
    assert all(flow.name == name for name, flow in FLOWS.items())


def test_a_code_stands_for_one_state() -> None:
    for flow in FLOWS.values():
        assert len(set(flow.codes.values())) == len(flow.codes)


def test_a_state_has_the_name_that_the_store_writes() -> None:
    for flow in FLOWS.values():
        assert all(state.name == state.value for state in flow.rows)
