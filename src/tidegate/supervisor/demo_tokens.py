"""What somebody at this machine needs to ask for something: a token, and a cid of their own."""

import time
from pathlib import Path

from ulid import ULID

from tidegate.client import load_keyring


def token(directory: Path, subject: str, role: str) -> str:
    """A token that the Tidegate of a directory believes."""
    return load_keyring(directory / "keys").token(subject, role, time.time())


def fresh_cid(prefix: str) -> str:
    """A name that nobody has used: what it names happens once."""
    return f"{prefix}-{ULID()}"
