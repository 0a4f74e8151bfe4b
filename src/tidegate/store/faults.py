"""Turns an error of PostgreSQL into a fault that shows the caller whether to try again."""

import psycopg

from tidegate.core.ports import (
    CommitUnknown,
    KeyTaken,
    LockTimeout,
    NotWritable,
    StoreFault,
    StoreUnavailable,
)

UNIQUE_VIOLATION, LOCK_TIMEOUT = "23505", "55P03"

# These prove that nothing was done, and that a retry may succeed. All others are a fault of the
# statement itself, or a lost connection, after which the outcome is unknown.
RETRYABLE = frozenset({"25P03", "25P04", "40001", "40P01", "55P03", "57014"})
RETRYABLE_CLASSES = ("57P0", "53", "08")
READ_ONLY = "25006"  # For example after a failover, on a session with the new standby.
NOT_WRITABLE = {"53100": "full", READ_ONLY: "read-only"}
# After these it is unknown whether a running statement took effect.
SILENT_CLASSES = ("57P0", "08")


def as_fault(fault: psycopg.Error) -> StoreFault:
    """Classify an error by its SQLSTATE. A lost connection has none; it may be tried again."""
    code = fault.sqlstate
    lost = code is None and isinstance(fault, psycopg.OperationalError | psycopg.InterfaceError)
    silent = lost or bool(code and code.startswith(SILENT_CLASSES))
    if code == UNIQUE_VIOLATION:
        return KeyTaken(f"{code}: {fault}")
    if code in NOT_WRITABLE:
        return NotWritable(f"{code}: {fault}", NOT_WRITABLE[code])
    if code == LOCK_TIMEOUT:
        return LockTimeout(f"{code}: {fault}")
    if lost or (code and (code in RETRYABLE or code.startswith(RETRYABLE_CLASSES))):
        return StoreUnavailable(f"{code or 'connection lost'}: {fault}", silent=silent)
    return StoreFault(f"{code or type(fault).__name__}: {fault}")


def commit_fault(fault: psycopg.Error, xid: str | None) -> StoreFault:
    """The fault for an error at COMMIT. Without a reply of the server the outcome is unknown."""
    reported = as_fault(fault)
    if isinstance(reported, StoreUnavailable) and reported.silent:
        return CommitUnknown(f"no reply to COMMIT: {fault}", xid)
    return reported
