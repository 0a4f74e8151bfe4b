"""What an error of PostgreSQL means for whoever may try again."""

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

# Proof that nothing was done and that doing it again may succeed. Everything else is a fault of
# the statement itself, or a lost connection, of which nothing is known.
RETRYABLE = frozenset({"25P03", "25P04", "40001", "40P01", "55P03", "57014"})
RETRYABLE_CLASSES = ("57P0", "53", "08")
READ_ONLY = "25006"  # As after a failover, on a session with what is now the standby.
NOT_WRITABLE = {"53100": "full", READ_ONLY: "read-only"}
# What does not tell whether a statement that was under way has happened.
SILENT_CLASSES = ("57P0", "08")


def as_fault(fault: psycopg.Error) -> StoreFault:
    """Errors are told apart by SQLSTATE. A connection that is lost has none: try it again."""
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
    """What an error in reply to COMMIT means: if it is silence, nobody knows what became of it."""
    told = as_fault(fault)
    if isinstance(told, StoreUnavailable) and told.silent:
        return CommitUnknown(f"no reply to COMMIT: {fault}", xid)
    return told
