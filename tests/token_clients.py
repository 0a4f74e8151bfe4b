"""Who calls a service in a test, with a token that is made when it is used.

A token lives for minutes, and nobody knows how long a run of all tests takes.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass

COLLECTING = "TIDEGATE_TESTS_COLLECTING"  # Set while test modules are imported.


@dataclass(frozen=True)
class Bearer:
    """Stands for a fresh token wherever it is put into text: f"Bearer {bearer}"."""

    mint: Callable[[], str]

    def __str__(self) -> str:
        return self.mint()


def assert_used_in_a_test() -> None:
    assert COLLECTING not in os.environ, "made at import, a token is too old when it is used"
