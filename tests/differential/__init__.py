"""Runs PostgreSQL and its twin statement by statement, in the same order, and compares them."""

from tests.differential.running import RunOptions, run_differential
from tests.differential.scheduler import Counts, Difference

__all__ = ["Counts", "Difference", "RunOptions", "run_differential"]
