"""Runs each scenario of the store contract on PostgreSQL and on the in-memory twin."""

import pytest

from tests.contracts.stores import RunScenario, postgres, scenario_runner, twin


@pytest.fixture(params=[postgres, twin], ids=["postgres", "twin"])
def run(request: pytest.FixtureRequest, database: str) -> RunScenario:
    return scenario_runner(request.param, database)
