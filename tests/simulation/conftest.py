"""Fixtures of the simulation tests, which create much garbage."""

import gc

import pytest


@pytest.fixture(scope="session", autouse=True)
def _freeze() -> None:
    """Exclude objects from before the first test from collection: scanning them took time."""
    gc.collect()
    gc.freeze()
