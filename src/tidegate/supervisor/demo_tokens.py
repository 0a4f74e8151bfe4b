"""Tokens and cids for the commands that call a local Tidegate."""

import time
from pathlib import Path

from ulid import ULID

from tidegate.client import load_keyring


def token(directory: Path, subject: str, role: str) -> str:
    """Sign a token for the Tidegate that runs in this directory."""
    return load_keyring(directory / "keys").token(subject, role, time.time())


def fresh_cid(prefix: str) -> str:
    """Return a new, unused cid."""
    return f"{prefix}-{ULID()}"
