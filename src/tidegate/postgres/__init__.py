"""The embedded PostgreSQL: find its programs and run a server as a child process."""

from tidegate.postgres.binaries import (
    Binaries,
    PostgresError,
    find_binaries,
    installed_binaries,
)
from tidegate.postgres.child import dying_with_us
from tidegate.postgres.directories import private_directory
from tidegate.postgres.server import Server, ServerTimeouts, database_url

__all__ = [
    "Binaries",
    "PostgresError",
    "Server",
    "ServerTimeouts",
    "database_url",
    "dying_with_us",
    "find_binaries",
    "installed_binaries",
    "private_directory",
]
