"""Where the fresh seeds of a run begin: a number of the commit, so that each commit tries others.

The same commit always tries the same seeds. `TIDEGATE_FRESH_SEEDS` names another number, for a
source tree without git or to repeat the run of another commit.
"""

import hashlib
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
VARIABLE = "TIDEGATE_FRESH_SEEDS"
BEYOND = 1_000_000  # The seeds below are for lists in the tests.
SPREAD = 10**12


def fresh_start(environment: Mapping[str, str] = os.environ) -> int:
    if (named := environment.get(VARIABLE)) is not None:
        return int(named)
    return start_of(commit(ROOT))


def start_of(text: str) -> int:
    """A number of 12 digits at most: commits that differ begin far from each other."""
    digest = hashlib.sha256(text.encode()).digest()
    return BEYOND + int.from_bytes(digest[:8]) % SPREAD


def commit(root: Path) -> str:
    """The commit that is checked out; nothing, where there is no git."""
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
