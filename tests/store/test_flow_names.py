"""Flows and states may have any name: the constraints compare names exactly."""

from enum import StrEnum
from uuid import uuid4

import psycopg
import pytest

from tests.conftest import SCHEMA
from tests.store.scenario import rows, superuser
from tests.store.test_flow_checks import INSERT_TRANSFER, allowed, answered, possible_answers
from tidegate.core.flow import Ask, End, Flow, Place, Verb
from tidegate.flows import FLOWS
from tidegate.store.migrate import migrate
from tidegate.store.schemas import MigrationRefused

NAMES = ["a/b", "a b", "a', 'b", 'a"b', "a\\b", "a\\tb", "{a,b}", "%s", "Größe", "ask x", "x"]


def named_flow(name: str) -> Flow:
    """One question and two ends. The flow and the state that asks have this name."""
    states = StrEnum("states", {"ASKS": name, "YES": "yes", "NO": "x" * 8})
    return Flow(
        name,
        first=states["ASKS"],
        rows={
            states["ASKS"]: Ask(Place.SOURCE, "source", Verb.CHECK, states["YES"], states["NO"]),
            states["YES"]: End(Place.SOURCE),
            states["NO"]: End(Place.SOURCE),
        },
    )


@pytest.mark.parametrize("name", NAMES)
def test_names_of_any_form_are_compared_exactly(database: str, name: str) -> None:
    """Names of states and of flows. A tab separates the parts of an answer."""
    flow = named_flow(name)
    migrate(database, SCHEMA, [flow])
    candidates = possible_answers(flow)
    legal = {answered(edge) for edge in flow.answers()}
    legal |= {(1, *row[1:]) for row in legal if row[0] == 5}
    assert allowed(database, flow, candidates) == legal
    with superuser(database) as connection:
        connection.execute(INSERT_TRANSFER, (uuid4(), name, name, "ledger"))
        for state, lane in ((name, None), (f"end {name}", "ledger"), (f"ask {name}", "ledger")):
            with pytest.raises(psycopg.errors.CheckViolation):
                connection.execute(INSERT_TRANSFER, (uuid4(), name, state, lane))


def test_rows_whose_parts_join_to_similar_texts_are_refused(database: str) -> None:
    """A part that contains the separator gives a text with more separators than any allowed one."""
    legal = (1, "TARGET_PENDING", "", "COMMITTED", "credit", "done")
    alike = [
        (1, "TARGET_PENDING\t", "", "COMMITTED", "credit", "done"),
        (1, "TARGET_PENDING", "\tCOMMITTED", "credit", "done", ""),
        (1, "TARGET_PENDING\t\tCOMMITTED", "credit", "done", "", ""),
        (1, "TARGET_PENDING", "", "COMMITTED\tcredit", "done", ""),
        (1, "", "TARGET_PENDING\t", "COMMITTED", "credit", "done"),
        (1, "TARGET_PENDING//COMMITTED", "credit", "done", "", ""),
    ]
    assert allowed(database, FLOWS["internal_transfer"], [legal, *alike]) == {legal}


def test_a_state_with_a_tab_in_its_name_is_refused(database: str) -> None:
    with pytest.raises(MigrationRefused, match="the name of a state contains a tab"):
        migrate(database, SCHEMA, [named_flow("a\tb")])
    assert rows(database, "SELECT FROM flow_tables WHERE flow = 'a\tb'") == []
