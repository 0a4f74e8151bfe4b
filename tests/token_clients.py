"""Clients in tests, whose tokens are made when they are used.

A token expires after minutes, and a run of all tests can take longer.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass

COLLECTING = "TIDEGATE_TESTS_COLLECTING"  # Set while test modules are imported.


@dataclass(frozen=True)
class Bearer:
    """Formats as a fresh token wherever it is used: f"Bearer {bearer}"."""

    mint: Callable[[], str]

    def __str__(self) -> str:
        return self.mint()


def assert_used_in_a_test() -> None:
    assert COLLECTING not in os.environ, "a token made at import can expire before it is used"
