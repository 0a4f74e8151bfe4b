"""The first fresh seed of a run: derived from the commit, so that each commit tries other seeds.

The same commit always tries the same seeds. `TIDEGATE_FRESH_SEEDS` sets another number, for a
source tree without git or to repeat the run of another commit.
"""

import hashlib
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
VARIABLE = "TIDEGATE_FRESH_SEEDS"
LISTED = 1_000_000  # Seeds below this are for lists in the tests.
SPREAD = 10**12


def fresh_start(environment: Mapping[str, str] = os.environ) -> int:
    if (number := environment.get(VARIABLE)) is not None:
        return int(number)
    return start_of(commit(ROOT))


def start_of(text: str) -> int:
    """A number of at most 12 digits. Different commits start far from each other."""
    digest = hashlib.sha256(text.encode()).digest()
    return LISTED + int.from_bytes(digest[:8]) % SPREAD


def commit(root: Path) -> str:
    """The commit that is checked out, or an empty string without git."""
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
