"""What the tests of the simulation have in common: they make much garbage."""

import gc

import pytest


@pytest.fixture(scope="session", autouse=True)
def _freeze() -> None:
    """What was there before the first test is no garbage: to look through it took time."""
    gc.collect()
    gc.freeze()
