"""What a desk may be set up with."""

from pathlib import Path
from typing import NamedTuple

ASSET = 3


class Place(NamedTuple):
    database: str
    directory: Path
