"""How many plans with two faults a change asks for: read off the files that it touches.

`make proof` carries out all of them. A test run carries out those of every flow whose table was
changed, and a sample of the others: larger where the change can reach a path at all. Which ones are
in the sample is a matter of the commit, so that later commits try others.
"""

import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from tests.simulation.paths import GUILD_FLOWS
from tests.simulation.paths import Path as Way
from tidegate.simulation.workload import SPOT

BASES = ("origin/main", "main")
REACHED, UNREACHED = 600, 100  # Plans of a path, at most.
# What a change of a file can reach. Of several that fit, the longest beginning counts.
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


def most(way: Way, changed: Iterable[str] | None) -> int | None:
    """How many plans with two faults are carried out of a path; None: all."""
    if changed is None:
        return REACHED  # Nothing is known of the change.
    files = tuple(changed)
    if f"{TABLES}{way.flow}.py" in files:
        return None
    return REACHED if any(reaches(file, way) for file in files) else UNREACHED


def reaches(file: str, way: Way) -> bool:
    if file.startswith(NOTHING) or file.startswith(TABLES):
        return False
    if file.startswith(OF_THE_CORE):
        return SPOT in way.roles.values()
    if file.startswith(OF_GUILDS):
        return way.flow in GUILD_FLOWS
    return file.startswith(EVERYTHING) and file.endswith((".py", ".sql"))


def sample(branches: Sequence[T], width: int, limit: int | None, number: int) -> Sequence[T]:
    """Every so-many-th, so that about as many plans as the limit grow from them."""
    step = 1 if limit is None else max(-(-width // limit), 1)
    return branches[number % min(step, len(branches)) :: step]


def changed_files(root: Path) -> frozenset[str] | None:
    """Since the branch left main, or in the last commit of main; None where it is not known."""
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


def _git(root: Path, *words: str) -> list[str]:
    command = ["git", "-C", str(root), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
