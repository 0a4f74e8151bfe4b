"""The database and the directory that a bench is opened with."""

from pathlib import Path
from typing import NamedTuple

ASSET = 3


class BenchSetup(NamedTuple):
    database: str
    directory: Path
