"""SHA-256 of the code that Tidegate is compared with, and of the load generator.

They are kept with the results, so that of two results everybody can see whether the yardstick was
the same.
"""

import hashlib
from pathlib import Path

HERE = Path(__file__).parent
LITERAL = ("literal.py", "rail.py", "fastapi_app.py")
PEERS = "peers/*.py"
LOAD = ("load.py", "driving.py", "traffic.py", "http_client.py")
SHOWN = 12  # The digits that are shown.


def yardstick(directory: Path = HERE) -> list[Path]:
    """The files of the literal protocol, of the peers and of the load generator."""
    named = [directory / name for name in (*LITERAL, *LOAD)]
    return sorted([*named, *directory.glob(PEERS)])


def checksums(directory: Path = HERE) -> dict[str, str]:
    return {
        path.relative_to(directory).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in yardstick(directory)
    }


def text_of(found: dict[str, str]) -> str:
    return ", ".join(f"`{name}` {digest[:SHOWN]}" for name, digest in found.items())
