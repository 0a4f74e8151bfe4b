"""PostgreSQL and its twin, statement by statement, in the same order, with the same results."""

from tests.differential.running import Wish, run_differential
from tests.differential.scheduler import Counts, Difference

__all__ = ["Counts", "Difference", "Wish", "run_differential"]
