"""The list of flows: each flow is found under its name, and its codes are distinct."""

from tidegate.flows import FLOWS


def test_every_flow_is_found_under_its_name() -> None:
    names = "internal_transfer deposit external_withdrawal pool_transfer member_transfer"
    assert list(FLOWS) == names.split()
    assert all(flow.name == name for name, flow in FLOWS.items())


def test_a_code_belongs_to_one_state() -> None:
    for flow in FLOWS.values():
        assert len(set(flow.codes.values())) == len(flow.codes)


def test_the_name_of_a_state_is_the_text_that_the_store_writes() -> None:
    for flow in FLOWS.values():
        assert all(state.name == state.value for state in flow.rows)
