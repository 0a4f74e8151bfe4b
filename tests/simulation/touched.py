"""How many plans with two faults a test run needs, depending on the files that were changed.

`make proof` runs all plans. A test run executes those of every flow whose table was changed, and a
sample of the others: larger if the change can affect a path at all. The commit determines the
sample, so that later commits try other plans.
"""

import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from tests.simulation.paths import GUILD_FLOWS
from tests.simulation.paths import Path as FlowPath
from tidegate.simulation.workload import SPOT

BASES = ("origin/main", "main")
AFFECTED, UNAFFECTED = 600, 100  # The largest number of plans of a path.
# Which paths a change of a file can affect. `affects` checks the more specific ones first.
EVERYTHING = ("src/tidegate/", "tests/simulation/")
NOTHING = (
    *("src/tidegate/commands", "src/tidegate/service/", "src/tidegate/economy/"),
    *("src/tidegate/postgres/", "src/tidegate/certify/", "src/tidegate/supervisor/"),
    *("src/tidegate/systems/http/", "src/tidegate/client.py", "src/tidegate/cli.py"),
    *("src/tidegate/settings.py", "src/tidegate/serving.py", "src/tidegate/app.py"),
)
OF_THE_CORE = ("src/tidegate/trading_core/", "src/tidegate/systems/trading")
OF_GUILDS = ("src/tidegate/systems/guild/",)
TABLES = "src/tidegate/flows/"

T = TypeVar("T")


def plan_limit(path: FlowPath, changed: Iterable[str] | None) -> int | None:
    """How many plans with two faults of a path are run. None means all."""
    if changed is None:
        return AFFECTED  # The change is not known.
    files = tuple(changed)
    if f"{TABLES}{path.flow}.py" in files:
        return None
    return AFFECTED if any(affects(file, path) for file in files) else UNAFFECTED


def affects(file: str, path: FlowPath) -> bool:
    if file.startswith(NOTHING) or file.startswith(TABLES):
        return False
    if file.startswith(OF_THE_CORE):
        return SPOT in path.roles.values()
    if file.startswith(OF_GUILDS):
        return path.flow in GUILD_FLOWS
    return file.startswith(EVERYTHING) and file.endswith((".py", ".sql"))


def sample(branches: Sequence[T], width: int, limit: int | None, number: int) -> Sequence[T]:
    """Every n-th branch, so that about `limit` plans extend them."""
    step = 1 if limit is None else max(-(-width // limit), 1)
    return branches[number % min(step, len(branches)) :: step]


def changed_files(root: Path) -> frozenset[str] | None:
    """The files changed since the branch left main, or in main's last commit. None if unknown."""
    try:
        base = _base(root)
        lines = _git(root, "diff", "--name-only", base)
        lines += _git(root, "ls-files", "--others", "--exclude-standard")
    except (OSError, subprocess.CalledProcessError):
        return None
    return frozenset(lines)


def _base(root: Path) -> str:
    [head] = _git(root, "rev-parse", "HEAD")
    for name in BASES:
        try:
            [base] = _git(root, "merge-base", "HEAD", name)
        except subprocess.CalledProcessError:
            continue
        if base != head:
            return base
    return "HEAD~1"


def _git(root: Path, *arguments: str) -> list[str]:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
